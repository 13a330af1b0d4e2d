"""How new models are judged: on the coordinator's set, by the clients, by both, or not at all."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from services.core.digests import of_json
from services.core.errors import Rejected
from tests.support.world import World

DATA = of_json("validation data")


def started(*names: str, **changes: Any) -> tuple[World, UUID]:
    world = World()
    world.enrol(*names)
    world.store_blob(DATA)
    world.provenance[DATA] = frozenset()
    run_id = world.create_run(**changes)
    world.settle()
    return world, run_id


def advance(world: World, *names: str) -> None:
    world.claim_and_submit(*names)
    world.settle()


def test_coordinators_set_judges_each_model_with_the_initial_one() -> None:
    world, run_id = started("a", validation={"data": DATA})
    advance(world, "a")
    metrics = [dict(c.metrics) for c in world.checkpoints(run_id)]
    assert metrics == [{"validation_accuracy": 0.5, "validation_loss": 1.0}] * 2


def test_clients_judge_a_model_before_it_is_published() -> None:
    world, run_id = started("a", "b", validation={"at_clients": True})
    advance(world, "a", "b")
    assert world.cohort(run_id).round == 0
    assert {t.kind for t in world.state.tasks.values() if t.status == "ready"} == {"evaluate"}
    advance(world, "a", "b")
    assert world.checkpoints(run_id)[1].metrics == {"clients_accuracy": 0.5, "clients_loss": 1.0}


def test_clients_figures_are_weighted_by_their_samples() -> None:
    world, run_id = started("a", "b", validation={"at_clients": True})
    advance(world, "a", "b")
    for name, num_samples, accuracy in (("a", 30, 1.0), ("b", 10, 0.0)):
        world.figures_of = lambda digest, accuracy=accuracy: {"accuracy": accuracy}  # type: ignore[misc]
        world.submit(world.claim(name)[0].task, num_samples)
    assert world.checkpoints(run_id)[1].metrics == {"clients_accuracy": 0.75}


def test_both_judge_when_both_are_asked_for() -> None:
    world, run_id = started("a", validation={"data": DATA, "at_clients": True})
    advance(world, "a")
    advance(world, "a")
    assert sorted(world.checkpoints(run_id)[1].metrics) == [
        "clients_accuracy",
        "clients_loss",
        "validation_accuracy",
        "validation_loss",
    ]


def test_every_nth_round_and_the_last_are_judged() -> None:
    world, run_id = started("a", validation={"data": DATA, "every": 2}, stop={"rounds": 3})
    for _ in range(3):
        advance(world, "a")
    assert [bool(c.metrics) for c in world.checkpoints(run_id)] == [True, False, True, True]


@pytest.mark.parametrize("kind", ["tree", "bi_model"])
def test_parts_that_nobody_is_served_need_not_be_judged(kind: str) -> None:
    world, run_id = started("a", "b", "c", topology={"kind": kind}, validation={"data": DATA, "parts": False})
    advance(world, "a", "b", "c")
    parts = {c.id for c in world.state.cohorts.values() if c.parent_id is not None}
    judged = [(c.cohort_id in parts, bool(c.metrics)) for c in world.checkpoints(run_id) if c.round]
    assert set(judged) == {(True, False), (False, True)}


def test_a_stop_rule_on_accuracy_needs_every_cohort_judged() -> None:
    with pytest.raises(ValueError, match=r"validation.parts"):
        started("a", validation={"data": DATA, "parts": False}, stop={"accuracy": 0.9})


def test_nothing_is_judged_when_nothing_is_asked_for() -> None:
    world, run_id = started("a")
    advance(world, "a")
    assert all(not c.metrics for c in world.checkpoints(run_id))
    assert {j.kernel for j in world.state.jobs.values() if j.kind == "kernel"} == {"init_model", "weighted_step"}


def test_evaluation_that_brings_an_update_is_refused() -> None:
    world, _ = started("a", validation={"at_clients": True})
    (training,) = world.claim("a")
    update = world.answer_to(training.task)
    world.send(update)
    world.settle()
    (granted,) = world.claim("a")
    answer = world.answer_to(granted.task)
    with pytest.raises(Rejected, match="invalid-result"):
        world.send(type(answer)(answer.task_id, answer.client_id, answer.lease_token, update.digest, 10))


def test_asynchronous_training_goes_on_while_clients_judge() -> None:
    training = {"algorithm": "fedbuff", "buffer_size": 1, "concurrency": 2}
    world, run_id = started("a", "b", training=training, validation={"at_clients": True})
    (slow,) = world.claim("b")
    advance(world, "a")
    world.submit(slow.task)
    assert world.cohort(run_id).num_buffered == 1
    advance(world, "a", "b")
    assert world.cohort(run_id).round == 1


def test_figures_are_the_clients_own_and_lie_in_the_stop_rule() -> None:
    stop = {"rounds": 5, "accuracy": 0.5}
    world, run_id = started("a", validation={"at_clients": True}, stop=stop)
    advance(world, "a")
    advance(world, "a")
    assert world.run(run_id).status == "completed" and world.cohort(run_id).round == 1
