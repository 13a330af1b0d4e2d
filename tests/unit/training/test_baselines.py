"""What FATS and Exact-Fun add to a round, and how Exact-Fun walks its past."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from pydantic import ValidationError

from services.core.digests import of_json
from services.methods.running import program_named
from services.program.contract import (
    AskClients,
    CohortView,
    Compute,
    Computed,
    PastRound,
    Publish,
    Published,
    UpdateRef,
)
from services.training.fats.plan import Sampling
from services.training.fats.spec import Fats
from tests.support.world import spec, with_run
from tests.unit.engine.test_families import go_on

MODEL = of_json("model")


def update(number: int, client: str) -> UpdateRef:
    return UpdateRef(UUID(int=number), client, of_json([number, client]), 3 + number, 0, {})


def past(name: str, *updates: UpdateRef) -> PastRound:
    return PastRound(of_json(name), updates)


def view(*history: PastRound, round: int = 1, **training: Any) -> CohortView:
    run = spec(training={"algorithm": "exact_fun", "quantum": 0.5, **training}, stop={"rounds": 6})
    return CohortView("all", 2, 2, run, MODEL, round, history=history)


@pytest.mark.parametrize(
    ("budget", "num_clients", "num_rounds", "expected"),
    [(0.5, 100, 10, 5), (2.0, 10, 10, 2), (0.1, 5, 50, 1), (9.0, 4, 2, 4)],
)
def test_the_budget_says_how_many_are_drawn_each_round(
    budget: float, num_clients: int, num_rounds: int, expected: int
) -> None:
    settled = Fats(algorithm="fats", client_budget=budget).settled(num_clients, num_rounds)
    assert settled.clients_per_round == expected


def test_what_is_drawn_each_round_is_fixed_when_the_run_starts() -> None:
    world, run_id = with_run(
        "a", "b", "c", "d", training={"algorithm": "fats", "client_budget": 2.0}, stop={"rounds": 4}
    )
    training = world.run(run_id).spec.training
    assert isinstance(training, Fats) and training.clients_per_round == 2
    world.fence("a")
    go_on(world, 5)
    rounds = [r for r in world.state.rounds.values() if r.epoch == world.cohort(run_id).epoch]
    assert rounds and {r.num_selected for r in rounds} == {2}


def test_fats_takes_the_plain_mean() -> None:
    assert Sampling(Fats(algorithm="fats")).weigh(update(7, "a"), 1) == (1.0, 0)


def test_impossible_combinations_are_refused() -> None:
    with pytest.raises(ValidationError, match="selection must be uniform"):
        spec(training={"algorithm": "fats"}, selection="round_robin")
    with pytest.raises(ValidationError, match=r"retention.updates must be all"):
        spec(training={"algorithm": "exact_fun"}, retention={"updates": 3})
    with pytest.raises(ValidationError, match="lock-step"):
        spec(training={"algorithm": "exact_fun"}, topology={"kind": "bi_model"})


def test_exact_fun_asks_everybody_and_rounds_what_comes_out() -> None:
    program = program_named("exact_fun")
    state, ask = program.start(view())
    assert ask == AskClients("train", 2, MODEL, 2, 2)
    assert state.walk == []


def test_rounds_that_come_out_the_same_stand_and_the_first_that_differs_ends_the_walk() -> None:
    program, now = (
        program_named("exact_fun"),
        view(past("two", update(1, "a")), past("three", update(2, "a")), past("four", update(3, "a"))),
    )
    state, step = program.start(now)
    assert isinstance(step, Compute)
    assert step.params["quantum"] == 0.5
    assert step.params["updates"] == [{"digest": update(1, "a").digest, "weight": 4.0}]
    state, publish = program.resume(state, Computed(of_json("two"), {}), now)
    assert isinstance(publish, Publish) and publish.round == 2
    assert [c.update_id for c in publish.contributions] == [UUID(int=1)]
    state, step = program.resume(state, Published(), now)
    assert isinstance(step, Compute) and step.params["base"] == of_json("two")
    assert step.params["updates"] == [{"digest": update(2, "a").digest, "weight": 5.0}]
    state, publish = program.resume(state, Computed(of_json("something else"), {}), now)
    assert isinstance(publish, Publish) and publish.round == 3
    state, step = program.resume(state, Published(), now)
    assert step == AskClients("train", 4, of_json("something else"), 2, 2)
    assert state.walk == []


def test_a_walk_survives_being_stored() -> None:
    program, now = program_named("exact_fun"), view(past("two", update(1, "a")), past("three", update(2, "a")))
    state, _ = program.start(now)
    assert program.state_type.model_validate(state.model_dump(mode="json")) == state


def test_a_walk_leaves_out_the_leaver_and_goes_on_from_the_last_making() -> None:
    world, run_id = with_run("a", "b", "c", training={"algorithm": "exact_fun"}, stop={"rounds": 4})
    go_on(world, 3)
    world.fence("a")
    world.run_kernels()
    cohort = world.cohort(run_id)
    assert (cohort.epoch, cohort.round, cohort.phase) == (1, 1, "asking"), "the hash of one round changed without a"
    (made,) = [c for c in world.checkpoints(run_id) if (c.epoch, c.round) == (1, 1)]
    assert world.clients_in(made) == {"b", "c"}
    go_on(world, 1)
    world.fence("b")
    world.run_kernels()
    assert (world.cohort(run_id).epoch, world.cohort(run_id).round) == (2, 1)
    (made,) = [c for c in world.checkpoints(run_id) if (c.epoch, c.round) == (2, 1)]
    assert world.clients_in(made) == {"c"}
    go_on(world, 5)
    assert world.run(run_id).status == "completed"
