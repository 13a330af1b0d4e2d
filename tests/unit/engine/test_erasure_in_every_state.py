"""Erasure at every moment of a run: whatever the run is doing, each request ends with a certificate that stands.

A run is driven by single steps (one chore, one kernel, one client's answer), so that "at every moment" is: before each
of them. A world that has nothing left to do and a request that is not completed is the fault looked for.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from typing import Any
from uuid import UUID

import pytest

from coordinator.engine import messages as m
from services.core.errors import Rejected
from tests.support.world import CHORES, JOB_LEASE_S, World

NAMES = ("a", "b", "c", "d")
KNOT = {"kind": "clusters", "num_clusters": 2}
RUNS: dict[str, dict[str, Any]] = {
    "flat, fedavg": {},
    "flat, judged by clients": {"validation": {"at_clients": True}},
    "flat, fedbuff": {"training": {"algorithm": "fedbuff", "buffer_size": 2, "concurrency": 3}},
    "flat, fats": {"training": {"algorithm": "fats", "clients_per_round": 2}},
    "flat, exact_fun": {"training": {"algorithm": "exact_fun"}},
    "knot clusters": {"topology": KNOT},
    "knot clusters, fedbuff": {"topology": KNOT, "training": {"algorithm": "fedbuff", "buffer_size": 2}},
    "spectral clusters": {"topology": {**KNOT, "assignment": "spectral", "merge": "best"}},
    "random clusters": {"topology": {**KNOT, "assignment": "random"}},
    "trees in knot clusters": {"topology": {**KNOT, "inside": {"kind": "tree"}}},
    "tree": {"topology": {"kind": "tree"}},
    "bi-model": {"topology": {"kind": "bi_model"}},
    "isolated": {"topology": {"kind": "isolated"}},
}


def begin(**changes: Any) -> tuple[World, UUID]:
    world = World()
    world.enrol(*NAMES)
    return world, world.create_run(stop={"rounds": 2}, **changes)


def step(world: World) -> bool:
    """One thing that happens by itself; False when nothing is left to happen."""
    if job := world.lease_job(*CHORES):
        world.run_chore(job)
        return True
    if job := world.lease_job("kernel"):
        world.send(world.outcome_of(job))
        return True
    num_events = len(world.events)
    world.review()
    return num_events != len(world.events) or any(_works(world, c.name) for c in list(world.state.clients.values()))


def _works(world: World, name: str) -> bool:
    """One answer of a client that is let in."""
    client = world.state.clients[world.client(name)]
    if client.status != "active" and client.needed_by is None:
        return False
    if client.exclusions != client.exclusions_acked:
        world.acknowledge(name)
        return True
    held = [t for t in world.state.tasks.values() if t.client_id == client.id and t.status == "leased"]
    task = held[0] if held else next((granted.task for granted in world.claim(name)), None)
    if task is not None:
        world.submit(task)
    return task is not None


def drive(world: World, num_steps: int = 2000) -> int:
    """How many steps it took until nothing was left to happen."""
    for taken in range(num_steps):
        if not step(world):
            return taken
    if num_steps == 2000:
        raise AssertionError("it never comes to rest")
    return num_steps


def at_every_moment(check: Callable[[World, UUID], None], stride: int = 1, **changes: Any) -> None:
    world, run_id = begin(**changes)
    for moment in itertools.count():
        try:
            if moment % stride == 0:
                check(world.copy(), run_id)
        except Exception as error:
            raise AssertionError(f"at moment {moment}: {error}") from error
        if not step(world):
            break
    assert world.run(run_id).status == "completed"


def ends_with_a_certificate(world: World, run_id: UUID, *erasure_ids: UUID, run: Collection[str]) -> None:
    drive(world)
    for erasure_id in erasure_ids:
        erasure = world.erasure(erasure_id)
        assert erasure.status == "completed", f"{erasure.status}: {erasure.reason}"
        assert erasure_id in world.state.certificates
    assert world.run(run_id).status in run, f"the run is {world.run(run_id).status}: {world.run(run_id).reason}"
    gone = {c.name for c in world.state.clients.values() if c.status == "erased"}
    for cohort in world.cohorts(run_id).values():
        if cohort.head_digest is not None:
            assert not gone & world.provenance[cohort.head_digest], f"{cohort.name} still has an erased client in it"


every_run = pytest.mark.parametrize("changes", RUNS.values(), ids=RUNS)


@every_run
def test_a_client_of_a_run_that_goes_on_is_erased_at_any_moment(changes: dict[str, Any]) -> None:
    def check(world: World, run_id: UUID) -> None:
        ends_with_a_certificate(world, run_id, world.file("b"), run={"completed"})

    at_every_moment(check, **changes)


@every_run
def test_a_client_of_a_cancelled_run_is_erased_at_any_moment(changes: dict[str, Any]) -> None:
    def check(world: World, run_id: UUID) -> None:
        world.send(m.CancelRun(run_id, "no longer wanted"))
        ends_with_a_certificate(world, run_id, world.file("b"), run={"cancelled"})

    at_every_moment(check, 2, **changes)


@every_run
def test_a_client_of_a_paused_run_is_erased_when_the_run_is_resumed(changes: dict[str, Any]) -> None:
    def check(world: World, run_id: UUID) -> None:
        if world.run(run_id).status != "running":
            return
        world.send(m.PauseRun(run_id, "operator", "paused by an operator"))
        erasure_id = world.file("b")
        drive(world)
        erasure = world.erasure(erasure_id)
        if world.run(run_id).status == "completed":  # everything was done when it was paused
            return
        if erasure.status != "completed":
            assert (erasure.status, erasure.reason) == (
                "requires_action",
                "run digits is paused: paused by an operator",
            )
        world.send(m.ResumeRun(run_id))
        ends_with_a_certificate(world, run_id, erasure_id, run={"completed"})

    at_every_moment(check, 2, **changes)


@every_run
def test_a_client_of_a_failed_run_is_erased_at_any_moment(changes: dict[str, Any]) -> None:
    def check(world: World, run_id: UUID) -> None:
        job = world.lease_job("kernel")
        while job is None and step(world):
            job = world.lease_job("kernel")
        if job is None:
            return
        world.send(m.JobFailed(job.id, job.lease_token or "", "it broke", retryable=False))
        world.run_chores("post")
        ends_with_a_certificate(world, run_id, world.file("b"), run={"failed"})

    at_every_moment(check, 2, **changes)


@every_run
def test_all_clients_of_a_run_are_erased_at_any_moment(changes: dict[str, Any]) -> None:
    def check(world: World, run_id: UUID) -> None:
        ends_with_a_certificate(world, run_id, world.file(*NAMES), run={"completed", "failed"})
        assert "an erasure left no cohort of the run" in (world.run(run_id).reason or "")
        assert all(c.head_digest is None for c in world.state.cohorts.values() if c.phase != "retired")

    at_every_moment(check, 2, **changes)


@every_run
def test_clients_are_erased_one_after_the_other_until_none_is_left(changes: dict[str, Any]) -> None:
    def check(world: World, run_id: UUID) -> None:
        filed = []
        for name in NAMES:
            filed.append(world.file(name))
            drive(world, 7)
        ends_with_a_certificate(world, run_id, *filed, run={"completed", "failed"})
        assert "an erasure left no cohort of the run" in (world.run(run_id).reason or "")

    at_every_moment(check, 5, **changes)


@every_run
def test_samples_of_a_client_are_erased_at_any_moment(changes: dict[str, Any]) -> None:
    def check(world: World, run_id: UUID) -> None:
        erasure_id = world.file("b", scope="samples", samples={"b": [1]})
        ends_with_a_certificate(world, run_id, erasure_id, run={"completed"})
        for cohort in world.cohorts(run_id).values():
            assert "b#1" not in world.samples_in.get(cohort.head_digest or "", frozenset())

    at_every_moment(check, 2, **changes)


@every_run
@pytest.mark.parametrize("method", ["not", "pga"])
def test_an_approximate_method_ends_with_a_certificate_or_is_refused_at_once(
    changes: dict[str, Any], method: str
) -> None:
    def check(world: World, run_id: UUID) -> None:
        params = {"radius": 1.0, "stop_accuracy": 0.1} if method == "pga" else {}
        num_events = len(world.events)
        try:
            erasure_id = world.file("b", method=method, guarantee="approximate", params=params, recovery_rounds=1)
        except Rejected as refusal:
            assert refusal.code == "method-unavailable" and num_events == len(world.events)
            erasure_id = world.file("b", guarantee="approximate")
        drive(world)
        erasure = world.erasure(erasure_id)
        assert erasure.status == "completed", f"{erasure.status}: {erasure.reason}"

    at_every_moment(check, 3, **changes)


@every_run
@pytest.mark.parametrize("leaver", ["b", "e"])
def test_a_client_is_erased_while_another_one_joins(changes: dict[str, Any], leaver: str) -> None:
    def check(world: World, run_id: UUID) -> None:
        world.enrol("e")
        joined = False
        for _ in range(9):  # as soon as it may, if it may
            try:
                world.join(run_id, "e")
                joined = True
                break
            except Rejected:
                drive(world, 1)
        drive(world, 3)
        ends_with_a_certificate(world, run_id, world.file(leaver), run={"completed"})
        living = {cohort.id for cohort in world.cohorts(run_id).values()}
        left = {x.name for x in world.state.members.values() if x.active and x.cohort_id in living}
        ended = [cohort.reason for cohort in world.state.cohorts.values() if cohort.name.startswith("profile:e")]
        came_too_late = ended == ["the run ended before it could join a cluster"]
        assert leaver not in left and (not joined or leaver == "e" or "e" in left or came_too_late)

    at_every_moment(check, 3, **changes)


def test_a_newcomer_is_measured_anew_when_a_client_that_it_was_compared_with_is_erased() -> None:
    world = World()
    world.enrol(*NAMES)
    run_id = world.create_run(stop={"rounds": 6}, topology=KNOT)
    drive(world, 9)
    world.enrol("e")
    world.join(run_id, "e")
    world.settle()
    world.claim_and_submit("e")
    job = world.lease_job("kernel")
    assert job is not None and job.kernel == "knot_newcomer"
    erasure_id = world.file("b")
    world.settle()
    world.claim_and_submit("e")
    drive(world, 40)
    world.advance(JOB_LEASE_S + 1)  # whoever was measuring it never answers
    ends_with_a_certificate(world, run_id, erasure_id, run={"completed"})
    assert "e" in {x.name for x in world.state.members.values() if world.state.cohorts[x.cohort_id].kind == "line"}


@every_run
def test_erasures_go_on_by_themselves_when_somebody_comes_back(changes: dict[str, Any]) -> None:
    def check(world: World, run_id: UUID) -> None:
        erasure_id = world.file("b")
        with_nobody_online(world)
        world.advance(61)
        with_nobody_online(world)
        erasure = world.erasure(erasure_id)
        if erasure.status != "completed":
            assert erasure.status == "requires_action" and "clients do not show up" in (erasure.reason or ""), erasure
        ends_with_a_certificate(world, run_id, erasure_id, run={"completed"})

    at_every_moment(check, 3, **changes)


def with_nobody_online(world: World) -> None:
    world.settle()
    world.tick()
    world.settle()


def test_a_run_that_can_no_longer_form_its_clusters_fails_with_the_reason() -> None:
    def check(world: World, run_id: UUID) -> None:
        was_forming = not any(c.kind == "line" for c in world.state.cohorts.values())
        ends_with_a_certificate(world, run_id, world.file("b"), run={"failed" if was_forming else "completed"})
        if was_forming:
            assert "the clusters can no longer be formed: 3 clients" in (world.run(run_id).reason or "")

    at_every_moment(check, topology={"kind": "clusters", "num_clusters": 4})


def test_runs_of_a_client_in_different_states_are_all_cut() -> None:
    world, profiling = begin(topology=KNOT)
    runs = {"profiling": profiling}
    runs["failed"] = world.create_run(name="failed", topology=KNOT)
    runs["cancelled"] = world.create_run(name="cancelled", topology={"kind": "tree"})
    drive(world, 12)
    while (job := world.lease_job("kernel")) is None or job.run_id != runs["failed"]:
        if job is not None:
            world.send(world.outcome_of(job))
        else:
            step(world)
    world.send(m.JobFailed(job.id, job.lease_token or "", "it broke", retryable=False))
    world.run_chores("post")
    world.send(m.CancelRun(runs["cancelled"], "no longer wanted"))
    runs["begun"] = world.create_run(name="begun", topology={"kind": "isolated"})
    runs["paused"] = world.create_run(name="paused")
    world.send(m.PauseRun(runs["paused"], "operator", "paused by an operator"))
    erasure_id = world.file("b")
    drive(world)
    assert world.erasure(erasure_id).reason == "run paused is paused: paused by an operator"
    world.send(m.ResumeRun(runs["paused"]))
    ends_with_a_certificate(world, runs["paused"], erasure_id, run={"completed"})
    ended = {name: world.run(run_id).status for name, run_id in runs.items()}
    assert ended == {
        "profiling": "completed",
        "failed": "failed",
        "cancelled": "cancelled",
        "begun": "completed",
        "paused": "completed",
    }


def test_samples_of_a_cancelled_run_are_erased_when_a_worker_that_was_away_acknowledges_them() -> None:
    world, run_id = begin()
    drive(world, 8)
    world.send(m.CancelRun(run_id, "no longer wanted"))
    erasure_id = world.file("b", scope="samples", samples={"b": [1]})
    world.settle()
    world.advance(61)
    world.settle()
    assert world.erasure(erasure_id).status == "requires_action"
    world.acknowledge("b")
    world.settle()
    assert world.erasure(erasure_id).status == "completed"
