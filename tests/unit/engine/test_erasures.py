"""Requests to forget: who may file what, what happens in which order, and when one is done."""

from __future__ import annotations

from uuid import UUID

import pytest

from coordinator.engine import messages as m
from services.core.errors import Rejected
from tests.support.world import OFFICER, World, with_run


def trained(*names: str, num_rounds: int = 2) -> tuple[World, UUID]:
    world, run_id = with_run(*names, stop={"rounds": 4})
    go_on(world, num_rounds)
    return world, run_id


def go_on(world: World, num_rounds: int) -> None:
    for _ in range(num_rounds):
        world.claim_and_submit(*[c.name for c in world.state.clients.values() if c.status == "active"])
        world.settle()


def test_request_is_done_when_its_lines_have_the_round_they_had() -> None:
    world, _ = trained("a", "b", "c")
    erasure_id = world.fence("a")
    world.settle()
    assert world.erasure(erasure_id).status == "executing"
    assert world.erasure(erasure_id).first_clean_at is not None
    go_on(world, 1)
    assert world.erasure(erasure_id).status == "executing"
    go_on(world, 1)
    assert world.erasure(erasure_id).status == "completed"
    assert world.state.certificates[erasure_id].envelope == "signed"


def test_request_for_a_client_without_runs_is_done_at_once() -> None:
    world = World()
    world.enrol("a")
    erasure_id = world.fence("a")
    world.settle()
    assert world.erasure(erasure_id).status == "completed"


def test_tainted_models_are_superseded_and_no_others() -> None:
    world, run_id = trained("a", "b", "c")
    erasure_id = world.fence("a")
    go_on(world, 2)
    marks = [(c.round, c.epoch, c.superseded_by) for c in world.checkpoints(run_id)]
    expected: list[tuple[int, int, UUID | None]] = [(0, 0, None), (1, 0, erasure_id), (2, 0, erasure_id)]
    assert marks == [*expected, (1, 1, None), (2, 1, None)]


def test_second_request_for_a_client_ends_with_the_first() -> None:
    world, _ = trained("a", "b", "c")
    first = world.file("a")
    second = world.file("a")
    assert world.erasure(second).duplicate_of == first
    go_on(world, 4)
    assert world.erasure(first).status == world.erasure(second).status == "completed"
    assert set(world.state.certificates) == {first}


def test_second_request_is_denied_with_the_first() -> None:
    world, _ = trained("a", "b", "c")
    first = world.file("a", needs_approval=True)
    second = world.file("a")
    world.send(m.DenyErasure(first, "not the client's own request", OFFICER))
    assert world.erasure(second).status == "denied"
    assert world.erasure(world.file("a")).duplicate_of is None


def test_request_that_overlaps_with_an_open_one_is_refused() -> None:
    world, _ = trained("a", "b", "c")
    world.file("a")
    with pytest.raises(Rejected, match="conflict"):
        world.file("a", "b")


def test_request_waits_for_approval() -> None:
    world, run_id = trained("a", "b", "c")
    erasure_id = world.file("a", needs_approval=True)
    world.settle()
    assert world.cohort(run_id).epoch == 0
    world.send(m.ApproveErasure(erasure_id, OFFICER))
    world.settle()
    assert world.cohort(run_id).epoch == 1


def test_client_is_forgotten_while_another_still_is() -> None:
    world, run_id = trained("a", "b", "c", "d")
    first = world.fence("a")
    world.settle()
    go_on(world, 1)
    second = world.fence("b")
    assert world.cohort(run_id).epoch == 2 and world.cohort(run_id).round == 0
    go_on(world, 2)
    assert world.erasure(first).status == world.erasure(second).status == "completed"
    assert world.provenance[world.cohort(run_id).head_digest or ""] == {"c", "d"}


def test_clients_are_forgotten_together() -> None:
    world, run_id = trained("a", "b", "c", "d")
    world.fence("a", "b")
    assert (world.cohort(run_id).epoch, world.cohort(run_id).num_members) == (1, 2)
    assert world.run(run_id).num_clients == 2


def test_erased_client_cannot_be_erased_again() -> None:
    world, _ = trained("a", "b", "c")
    erasure_id = world.fence("a")
    go_on(world, 2)
    with pytest.raises(Rejected, match=f"already-erased: client a was erased by request {erasure_id}"):
        world.file("a")


def test_second_request_after_the_fence_ends_with_the_first() -> None:
    world, _ = trained("a", "b", "c")
    first = world.fence("a")
    second = world.file("a", needs_approval=True)
    assert (world.erasure(second).duplicate_of, world.erasure(second).status) == (first, "received")
    go_on(world, 2)
    assert world.erasure(first).status == world.erasure(second).status == "completed"
    assert set(world.state.certificates) == {first}


def test_removing_an_erased_client_keeps_its_tombstone() -> None:
    world, _ = trained("a", "b", "c")
    world.fence("a")
    world.send(m.RemoveClient(world.client("a")))
    assert world.state.clients[world.client("a")].status == "erased"


def test_those_who_remain_go_on_when_they_are_fewer_than_the_quorum() -> None:
    world, run_id = with_run("a", "b", stop={"rounds": 2}, training={"algorithm": "fedavg", "quorum": 2})
    go_on(world, 1)
    erasure_id = world.fence("a")
    go_on(world, 2)
    assert world.erasure(erasure_id).status == world.run(run_id).status == "completed"


def test_last_client_of_a_completed_run_is_forgotten_and_the_run_serves_nothing() -> None:
    world, run_id = trained("a", num_rounds=4)
    erasure_id = world.fence("a")
    world.settle()
    assert world.erasure(erasure_id).status == "completed"
    assert world.cohort(run_id).head_id is None
    assert world.run(run_id).status == "completed"
    assert world.run(run_id).reason == "an erasure left no cohort of the run: it serves no model any more"


def test_fence_and_purge_may_be_carried_out_twice() -> None:
    world, _ = trained("a", "b", "c")
    erasure_id = world.fence("a")
    go_on(world, 2)
    before = world.state
    for job in [j for j in world.state.jobs.values() if j.kind in ("fence", "purge")]:
        version = world.erasure(erasure_id).version
        fence, purge = m.FenceErasure(erasure_id, job.id), m.CompleteErasure(erasure_id, job.id, version, "again")
        world.send(fence if job.kind == "fence" else purge)
    assert (world.state.erasures, world.state.cohorts) == (before.erasures, before.cohorts)
    assert world.state.certificates == before.certificates


def test_fence_that_a_restored_database_lacks_falls_whatever_that_says() -> None:
    """The log of tombstones has it; the database has an open request of its own."""
    world, run_id = with_run("a", "b", training={"algorithm": "fedavg", "quorum": 2})
    world.file("a", needs_approval=True)
    erasure_id = world.fence("a", is_tombstoned=True)
    assert world.erasure(erasure_id).status == "fenced" and world.cohort(run_id).epoch == 1


def test_fence_from_the_log_takes_the_place_of_an_open_request() -> None:
    world, run_id = trained("a", "b", "c")
    waiting = world.file("a", needs_approval=True)
    second = world.file("a")
    erasure_id = world.fence("a", is_tombstoned=True)
    assert [world.erasure(one).status for one in (waiting, second, erasure_id)] == ["cancelled", "cancelled", "fenced"]
    assert world.cohort(run_id).epoch == 1
