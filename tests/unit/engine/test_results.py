"""What a submitted result must be to count, and that it counts once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coordinator.engine import messages as m
from services.core.digests import of_json
from services.core.errors import Rejected
from tests.support.world import MODEL_LAYOUT, World, with_run


def refused(world: World, message: m.Message[Any], code: str) -> None:
    """The message is refused with this code and changes nothing."""
    before = world.state
    with pytest.raises(Rejected) as refusal:
        world.send(message)
    assert refusal.value.code == code
    assert world.state is before


def test_result_becomes_an_update_of_its_task() -> None:
    world, run_id = with_run("a", "b")
    (granted,) = world.claim("a")
    accepted = world.submit(granted.task, num_samples=7)
    (update,) = world.updates("buffered")
    assert (update.id, update.client_name, update.num_samples) == (accepted.update_id, "a", 7)
    assert update.base_digest == world.cohort(run_id).head_digest
    assert world.awaited_round(run_id).num_received == 1


def test_exact_replay_gets_the_same_answer_and_changes_nothing() -> None:
    world, _ = with_run("a", "b")
    (granted,) = world.claim("a")
    first = world.submit(granted.task)
    before = world.state
    assert world.submit(granted.task) == first
    assert world.state == before


def test_replay_after_the_round_closed_gets_the_same_answer() -> None:
    world, _ = with_run("a")
    (granted,) = world.claim("a")
    first = world.submit(granted.task)
    world.settle()
    assert world.submit(granted.task) == first


def test_another_result_for_a_finished_task_is_refused() -> None:
    world, _ = with_run("a", "b")
    (granted,) = world.claim("a")
    world.submit(granted.task)
    other = world.store_blob(of_json("another update"))
    refused(world, replace(world.answer_to(granted.task), digest=other), "already-submitted")


def test_another_clients_task_is_not_found() -> None:
    world, _ = with_run("a", "b")
    (granted,) = world.claim("a")
    message = replace(world.answer_to(granted.task), client_id=world.client("b"))
    refused(world, message, "not-found")


def test_update_that_was_never_uploaded_is_refused() -> None:
    world, _ = with_run("a")
    (granted,) = world.claim("a")
    refused(world, replace(world.answer_to(granted.task), digest=of_json("nowhere")), "blob-missing")


def test_update_with_another_layout_is_refused() -> None:
    world, _ = with_run("a")
    (granted,) = world.claim("a")
    answer = replace(world.answer_to(granted.task), digest=of_json("a whole model"))
    world.record(world.announce(answer.digest, granted.task), layout=MODEL_LAYOUT)
    refused(world, answer, "wrong-layout")


def test_update_that_is_not_finite_is_refused() -> None:
    world, _ = with_run("a")
    (granted,) = world.claim("a")
    answer = replace(world.answer_to(granted.task), digest=of_json("NaN"))
    world.record(world.announce(answer.digest, granted.task), finite=False)
    refused(world, answer, "not-finite")


def test_train_result_without_an_update_is_refused() -> None:
    world, _ = with_run("a")
    (granted,) = world.claim("a")
    refused(world, replace(world.answer_to(granted.task), digest=None), "invalid-result")


def test_impossible_accuracy_is_refused() -> None:
    world, _ = with_run("a")
    (granted,) = world.claim("a")
    refused(world, replace(world.answer_to(granted.task), metrics={"accuracy": 1.5}), "invalid-result")


def test_refused_result_leaves_the_task_with_its_client() -> None:
    world, _ = with_run("a")
    (granted,) = world.claim("a")
    refused(world, replace(world.answer_to(granted.task), digest=of_json("nowhere")), "blob-missing")
    world.submit(granted.task)
    assert world.task_of("a").status == "done"


def test_removed_client_is_told_to_stop() -> None:
    world, _ = with_run("a", "b")
    (granted,) = world.claim("a")
    message = world.answer_to(granted.task)
    world.send(m.RemoveClient(world.client("a")))
    refused(world, message, "client-removed")
    refused(world, m.ClaimTasks(world.client("a")), "client-removed")
