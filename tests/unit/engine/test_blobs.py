"""Whose bytes are whose: what may be recorded, submitted and started from."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from coordinator.engine.entities import Blob
from services.core.digests import of_json
from services.core.errors import Rejected
from tests.support.world import UPDATE_LAYOUT, World, with_run


def with_an_update(*names: str) -> tuple[World, UUID, str]:
    """A run whose first client has sent its update, which counts."""
    world, run_id = with_run(*names)
    (granted,) = world.claim(names[0])
    world.submit(granted.task)
    return world, run_id, world.train(granted.task)


def with_a_superseded_model() -> tuple[World, str]:
    world, run_id = with_run("a", "b", stop={"rounds": 3})
    world.claim_and_submit("a", "b")
    world.settle()
    tainted = world.cohort(run_id).head_digest
    world.fence("a")
    assert tainted is not None and tainted != world.cohort(run_id).head_digest
    return world, tainted


def refused(world: World, blob: Blob, code: str) -> Rejected:
    """It is not recorded, and nothing but the blob itself is gone."""
    with pytest.raises(Rejected) as refusal:
        world.record(blob)
    assert refusal.value.code == code
    assert blob.id not in world.state.blobs
    return refusal.value


def test_what_another_client_uploaded_cannot_be_submitted() -> None:
    world, _, others = with_an_update("a", "b")
    (granted,) = world.claim("b")
    with pytest.raises(Rejected, match="blob-missing"):
        world.send(replace(world.answer_to(granted.task), digest=others))
    assert world.upload(others, granted.task), "who has the bytes may send them, too"
    world.send(replace(world.answer_to(granted.task), digest=others))
    assert len([b for b in world.state.blobs.values() if b.digest == others]) == 2


def test_what_an_operator_uploaded_cannot_be_submitted() -> None:
    world, _ = with_run("a")
    (granted,) = world.claim("a")
    weights = world.store_blob(of_json("weights"))
    with pytest.raises(Rejected, match="blob-missing"):
        world.send(replace(world.answer_to(granted.task), digest=weights))


def test_what_was_uploaded_for_an_earlier_task_cannot_be_submitted_for_another() -> None:
    world, _, first = with_an_update("a")
    world.settle()
    (granted,) = world.claim("a")
    with pytest.raises(Rejected, match="blob-missing"):
        world.send(replace(world.answer_to(granted.task), digest=first))


def test_an_upload_that_is_not_finished_cannot_be_submitted() -> None:
    world, _ = with_run("a")
    (granted,) = world.claim("a")
    begun = world.announce(of_json("half"), granted.task)
    with pytest.raises(Rejected, match="blob-missing"):
        world.send(replace(world.answer_to(granted.task), digest=begun.digest))


def test_an_operator_cannot_upload_the_bytes_of_a_clients_update() -> None:
    world, _, update = with_an_update("a", "b")
    refused(world, world.announce(update), "anothers-bytes")


def test_a_client_may_send_what_an_operator_uploaded_before() -> None:
    world, _ = with_run("a")
    same = world.store_blob(of_json("the same"))
    (granted,) = world.claim("a")
    assert world.upload(same, granted.task)


def test_nobody_can_bring_back_the_bytes_of_a_superseded_model() -> None:
    world, tainted = with_a_superseded_model()
    refused(world, world.announce(tainted), "superseded")
    (granted,) = world.claim("b")
    refused(world, world.announce(tainted, granted.task), "superseded")
    world.settle()
    refused(world, world.announce(tainted), "superseded")


def test_bytes_that_were_given_up_meanwhile_are_sent_again_from_the_beginning() -> None:
    world, _ = with_run("a")
    (granted,) = world.claim("a")
    for lose in (world.drop_blobs, world.mark_dropping):
        begun = world.announce(of_json("lost"), granted.task)
        lose({begun.id})
        with pytest.raises(Rejected) as refusal:
            world.send(world.record_of(begun, of_json("lost"), UPDATE_LAYOUT))
        assert (refusal.value.code, refusal.value.extra["offset"]) == ("upload-offset-mismatch", 0)


def test_recording_the_same_upload_twice_changes_nothing() -> None:
    world, _ = with_run("a")
    (granted,) = world.claim("a")
    begun = world.announce(of_json("update"), granted.task)
    world.record(begun)
    before = world.state
    world.record(begun)
    assert world.state == before


def test_an_upload_that_a_fence_overtook_is_not_recorded() -> None:
    world, _ = with_run("a", "b")
    (granted,) = world.claim("a")
    begun = world.announce(of_json("too late"), granted.task)
    world.fence("a")
    refused(world, begun, "client-erased")


@pytest.mark.parametrize("where", ["init", "validation"])
def test_a_run_cannot_name_what_a_client_sent(where: str) -> None:
    world, _, update = with_an_update("a", "b")
    named = {"init": update} if where == "init" else {"validation": {"data": update}}
    with pytest.raises(Rejected, match="is not stored in this federation"):
        world.create_run(name="another", **named)


def test_a_run_may_begin_with_a_model_that_is_served() -> None:
    world, run_id, _ = with_an_update("a")
    world.settle()
    served = world.cohort(run_id).head_digest
    another = world.create_run(name="another", init=served)
    assert world.cohort(another).head_digest == served


def test_validation_data_must_be_an_operators_upload() -> None:
    world, run_id, _ = with_an_update("a")
    world.settle()
    with pytest.raises(Rejected, match="validation"):
        world.create_run(name="another", validation={"data": world.cohort(run_id).head_digest})
