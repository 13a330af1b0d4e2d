"""Erasure at every moment of a run: whatever the run is doing, each request ends with a certificate that stands.

A run is driven by single steps (one chore, one kernel, one client's answer), so that "at every moment" is: before each
of them. A world that has nothing left to do and a request that is not completed is the fault looked for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any
from uuid import UUID

import pytest

from coordinator.engine import messages as m
from services.core.errors import Rejected
from tests.support.world import CHORES, World

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


def moments(**changes: Any) -> int:
    world, run_id = begin(**changes)
    taken = drive(world)
    assert world.run(run_id).status == "completed"
    return taken + 1


def at_every_moment(check: Callable[[World, UUID], None], stride: int = 1, **changes: Any) -> None:
    for moment in range(0, moments(**changes), stride):
        world, run_id = begin(**changes)
        drive(world, moment)
        try:
            check(world, run_id)
        except Exception as error:
            raise AssertionError(f"at moment {moment}: {error}") from error


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
