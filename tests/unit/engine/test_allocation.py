"""Clients are divided among jobs that go on at the same time, once per period, and rounds ask those who serve them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from coordinator.engine import messages as m
from coordinator.engine.entities import Federation, LedgerEntry, Period
from services.core.errors import Rejected
from services.incentive.division import divide
from services.incentive.spec import Incentives, Strategy
from tests.support.world import FEDERATION, START, World

NAMES = [f"c{n}" for n in range(10)]
TREE = {"kind": "tree"}


def governed(strategy: Strategy | None = "game", names: list[str] | None = None, **incentives: Any) -> World:
    """A world whose federation divides its clients."""
    world = World()
    found = Incentives.model_validate({"prices": {"megabyte": 15.0}, **incentives})
    world.state = world.state.put(Federation(FEDERATION, "hospitals", START, strategy, found))
    world.enrol(*(NAMES if names is None else names))
    for number, client in enumerate(sorted(world.state.clients.values(), key=lambda c: c.name)):
        declared = {"samples": 80 + 20 * (number % 3), "seconds": 10.0, "bytes": 1_000_000, "stored_bytes": 0}
        world.state = world.state.put(replace(client, resources=declared))
    return world


def serving(world: World, run_id: UUID) -> set[str]:
    own = {c.id for c in world.cohorts(run_id).values()}
    return {x.name for x in world.state.members.values() if x.cohort_id in own and x.active and x.allotted}


def asked(world: World, run_id: UUID) -> set[str]:
    return {t.client_name for t in world.open_tasks(world.cohort(run_id).id)}


def newest(world: World) -> Period:
    return max(world.state.periods.values(), key=lambda period: period.number)


def entries(world: World, kind: str) -> list[LedgerEntry]:
    return [entry for entry in world.state.ledger.values() if entry.kind == kind]


def two_runs(
    strategy: Strategy = "game", rewards: tuple[float, float] = (120.0, 100.0), **incentives: Any
) -> tuple[World, UUID, UUID]:
    world = governed(strategy, **incentives)
    first = world.create_run(name="first", reward=rewards[0], stop={"rounds": 2})
    world.settle()
    second = world.create_run(name="second", reward=rewards[1], stop={"rounds": 2})
    world.settle()
    return world, first, second


def finish_round(world: World, run_id: UUID) -> None:
    for name in sorted(asked(world, run_id)):
        for granted in world.send(m.ClaimTasks(world.client(name), run_id)):
            world.submit(granted.task)
    world.settle()


def finish(world: World, *run_ids: UUID) -> None:
    """Train until the runs are completed, or for so many rounds that they should be."""
    for _ in range(30):
        for run_id in run_ids:
            finish_round(world, run_id)
    assert {world.run(run_id).status for run_id in run_ids} == {"completed"}


def divided() -> World:
    """Two runs that clients were divided among, until that was taken back."""
    world, first, _ = two_runs()
    finish_round(world, first)
    world.send(m.ChangeAllocation(FEDERATION, None, Incentives()))
    return world


def test_without_an_allocation_everybody_serves_everything_and_nothing_is_written() -> None:
    world = governed(None)
    first, second = world.create_run(name="first"), world.create_run(name="second")
    world.settle()

    assert asked(world, first) == asked(world, second) == set(NAMES)
    finish_round(world, first)
    assert not world.state.periods and not world.state.ledger
    assert all(x.allotted for x in world.state.members.values())
    assert all(c.allotment is None for c in world.state.cohorts.values())


def test_a_round_asks_those_who_serve_its_job_and_nobody_else() -> None:
    world, first, second = two_runs()
    finish_round(world, first)  # its first round was asked when it was the only job

    assert asked(world, first) == serving(world, first)
    assert serving(world, first) | serving(world, second) == set(NAMES)
    assert not serving(world, first) & serving(world, second)
    division = newest(world).division
    for place, run_id in enumerate((first, second)):
        wanted = sum(len(one.clients) * one.shares[place] for one in division.populations)
        assert abs(len(serving(world, run_id)) - wanted) <= 1


def test_a_round_that_is_open_when_a_period_begins_goes_on_as_it_was_asked() -> None:
    world, first, _ = two_runs()

    assert asked(world, first) == set(NAMES)
    finish_round(world, first)
    assert len(world.contributions(world.checkpoints(first)[-1])) == 10


def test_what_a_period_was_decided_from_decides_the_same_again() -> None:
    world, _, _ = two_runs(reward="per_client")

    for period in world.state.periods.values():
        again = divide(period.strategy, period.jobs, period.candidates, period.incentives, period.number)
        assert again == period.division
    assert [job.name for job in newest(world).jobs] == ["run first", "run second"]


def test_the_run_that_has_ended_leaves_the_others_their_clients() -> None:
    """Which of two jobs is quicker must not decide who serves the other."""
    world, first, second = two_runs()
    before, served = newest(world).number, serving(world, second)
    finish(world, first)

    assert newest(world).number == before and serving(world, second) == served


def test_a_fence_begins_a_period_in_which_the_request_is_a_job() -> None:
    world, first, second = two_runs(rewards=(100.0, 100.0))
    finish_round(world, first)
    finish_round(world, second)

    erasure_id = world.fence("c0", reward=300.0)

    period = newest(world)
    assert {job.id for job in period.jobs} == {erasure_id}, "both runs forget the client"
    assert period.jobs[0].pool == 300.0
    assert "c0" not in {one.client for one in period.candidates}
    assert all(c.allotment is not None and c.allotment.is_erasure for c in world.cohorts(first).values())


def test_a_request_competes_with_a_run_that_it_does_not_touch() -> None:
    world = governed("greedy", at_least=2)
    first = world.create_run(name="first", clients=NAMES, stop={"rounds": 3}, reward=100.0)
    world.settle()
    finish_round(world, first)
    second = world.create_run(name="second", clients=NAMES[1:], reward=200.0)
    world.settle()
    assert len(serving(world, first)) == 2, "nobody waits: it is served by as many as every cohort is"

    erasure_id = world.fence("c0", reward=500.0)

    assert {job.id for job in newest(world).jobs} == {erasure_id, second}
    assert serving(world, first) == set(NAMES[1:])
    assert len(serving(world, second)) == 2


def test_who_joins_begins_a_period() -> None:
    world, first, _ = two_runs()
    before = newest(world).number
    world.enrol("newcomer")

    world.join(first, "newcomer")

    assert newest(world).number == before + 1
    assert newest(world).division.jobs["newcomer"] == first
    assert "newcomer" in serving(world, first)


def test_a_job_that_everybody_leaves_is_served_by_as_many_as_every_cohort_is() -> None:
    world, first, second = two_runs("greedy", rewards=(1.0, 2.0), at_least=3)

    assert len(serving(world, first)) == 3
    assert serving(world, second) == set(NAMES)
    finish(world, first)


def test_when_those_who_served_have_left_all_members_serve() -> None:
    world, first, _ = two_runs("greedy", rewards=(1.0, 2.0))
    finish_round(world, first)
    (only,) = serving(world, first)

    world.send(m.RemoveClient(world.client(only)))
    world.settle()
    finish(world, first)


@pytest.mark.parametrize("strategy", ["game", "random", "round_robin", "greedy"])
def test_rewards_of_zero_and_a_single_client_are_no_fault(strategy: Strategy) -> None:
    world = governed(strategy, names=["a"], pool=0.0)
    first, second = world.create_run(name="first", stop={"rounds": 2}), world.create_run(name="second")
    world.settle()
    finish(world, first, second)

    assert all(sum(entry.amounts.values()) == 0.0 for entry in entries(world, "reward"))


def test_a_job_without_clients_is_none() -> None:
    """Its last client leaves: nobody is divided for it, and the others go on."""
    world = governed("game")
    alone = world.create_run(name="alone", clients=["c0"])
    other = world.create_run(name="other", clients=NAMES[1:])
    world.settle()

    world.send(m.RemoveClient(world.client("c0")))
    world.settle()
    world.send(m.ChangeAllocation(FEDERATION, "game", Incentives()))

    assert world.run(alone).status == "failed"
    assert [job.id for job in newest(world).jobs] == [other]
    assert serving(world, other) == set(NAMES[1:])


def test_without_open_jobs_a_period_is_empty() -> None:
    world = governed("game")

    world.send(m.ChangeAllocation(FEDERATION, "game", Incentives()))

    assert newest(world).division.jobs == {} and newest(world).jobs == ()


def test_an_allocation_that_is_taken_back_lets_everybody_serve_again() -> None:
    world, first, second = two_runs()

    world.send(m.ChangeAllocation(FEDERATION, None, Incentives()))

    assert serving(world, first) == serving(world, second) == set(NAMES)
    assert all(c.allotment is None for c in world.state.cohorts.values())


def test_a_federation_that_is_not_there_cannot_be_changed() -> None:
    with pytest.raises(Rejected, match="not-found"):
        World().send(m.ChangeAllocation(UUID(int=99), "game", Incentives()))


def test_an_answer_costs_what_its_client_declared_and_its_round_pays_the_jobs_reward() -> None:
    world, first, _ = two_runs(fixed=2.0)
    finish_round(world, first)

    costs, rewards = entries(world, "cost"), entries(world, "reward")

    assert Counter(entry.client_name for entry in costs) == Counter(NAMES)
    assert all(entry.amounts == {"computation": 0.1, "communication": 30.0, "storage": 0.0} for entry in costs)
    assert sum(entry.amounts["share"] for entry in rewards) == pytest.approx(120.0)
    assert all(entry.amounts["fixed"] == 2.0 and entry.job_id == first and entry.round == 1 for entry in rewards)


def test_asynchronous_training_fills_its_buffer_from_those_who_serve() -> None:
    world = governed("greedy")
    training = {"algorithm": "fedbuff", "buffer_size": 4, "concurrency": 6}
    first = world.create_run(name="first", training=training, reward=1.0, stop={"rounds": 3})
    world.create_run(name="second", reward=2.0)
    world.settle()
    finish(world, first)

    assert len(serving(world, first)) == 1


def test_clusters_are_formed_from_everybody_and_go_on_with_who_serves_the_run() -> None:
    world = governed("round_robin")
    topology = {"kind": "clusters", "num_clusters": 2, "assignment": "knot"}
    world.create_run(name="other")
    first = world.create_run(name="first", topology=topology)
    world.settle()
    assert asked(world, first) == set(NAMES)

    finish_round(world, first)

    allotted = {name for name, job in newest(world).division.jobs.items() if job == first}
    lines = [c for c in world.cohorts(first).values() if c.kind == "line"]
    assert len(lines) == 2 and serving(world, first) == allotted
    for cohort in lines:
        own = {t.client_name for t in world.open_tasks(cohort.id)}
        members = {x.name for x in world.state.members.values() if x.cohort_id == cohort.id}
        assert own == (members & allotted or members)


def test_a_tree_trains_with_those_who_serve_it() -> None:
    world = governed("round_robin")
    other = world.create_run(name="other", stop={"rounds": 1})
    first = world.create_run(name="first", topology=TREE, stop={"rounds": 2})
    world.settle()
    allotted = {name for name, job in newest(world).division.jobs.items() if job == first}
    root = next(c for c in world.cohorts(first).values() if c.kind == "root")
    assert {t.client_name for t in world.open_tasks(root.id)} == allotted

    for _ in range(20):
        world.claim_and_submit(*NAMES)
        world.settle()

    assert world.run(first).status == world.run(other).status == "completed"
