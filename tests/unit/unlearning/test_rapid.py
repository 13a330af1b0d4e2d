"""The hybrid schedule of rapid retraining, and how the engine carries it out."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.engine.erasure.recovery import local_training
from coordinator.engine.erasure.stages import Recover
from coordinator.engine.replies import Granted
from services.core.errors import Rejected
from services.training.local_spec import LocalTraining
from tests.support.world import World, with_run
from tests.unit.engine.test_erasures import go_on

OWN = LocalTraining(epochs=3, batch_size=8, momentum=0.9, clip_norm=1.0)
QUICK = {"warmup_rounds": 1, "first_order_every": 3}


def recovery(params: dict[str, Any], from_round: int, until_round: int) -> Recover:
    return Recover(until_round, "rapid", params, from_round=from_round)


def curved(under: Recover | None, rounds: range) -> list[int]:
    return [round for round in rounds if local_training(OWN, under, round).optimizer == "adahessian"]


def test_rounds_of_the_warm_up_and_every_fifth_after_it_train_as_the_run_does() -> None:
    assert curved(recovery({}, 0, 22), range(1, 30)) == [11, 12, 13, 14, 16, 17, 18, 19, 21, 22]


def test_rounds_are_counted_from_the_model_that_the_recovery_starts_from() -> None:
    assert curved(recovery({}, 7, 22), range(8, 30)) == [18, 19, 20, 21]


def test_only_optimiser_and_learning_rate_differ() -> None:
    found = local_training(OWN, recovery({"warmup_rounds": 0, "learning_rate": 0.02}, 0, 9), 1)
    assert found == OWN.model_copy(update={"optimizer": "adahessian", "learning_rate": 0.02, "momentum": 0.0})


def test_cohort_without_a_recovery_trains_as_the_run_does() -> None:
    assert local_training(OWN, None, 3) is OWN
    assert local_training(OWN, Recover(until_round=9), 3) is OWN


def optimizers_used(world: World, num_rounds: int) -> list[str]:
    used: list[str] = []
    for _ in range(num_rounds):
        granted: list[Granted] = [grant for name in ("b", "c") for grant in world.claim(name)]
        (one,) = {local_training(g.run.spec.local, g.cohort.recovery, g.task.base_round + 1).optimizer for g in granted}
        used.append(one)
        for grant in granted:
            world.submit(grant.task)
        world.settle()
    return used


def test_clients_use_curvature_until_the_round_of_the_fence_and_not_beyond() -> None:
    world, _ = with_run("a", "b", "c", stop={"rounds": 8})
    go_on(world, 5)
    erasure_id = world.fence("a", method="rapid", params=QUICK)
    world.settle()
    assert optimizers_used(world, 8) == ["sgd", "adahessian", "adahessian", "sgd", "adahessian", "sgd", "sgd", "sgd"]
    assert world.erasure(erasure_id).status == "completed"


def test_later_erasure_by_another_method_ends_the_schedule() -> None:
    world, run_id = with_run("a", "b", "c", "d", stop={"rounds": 8})
    go_on(world, 5)
    world.fence("a", method="rapid", params=QUICK)
    assert world.cohort(run_id).recovery == recovery(QUICK, 0, 5)
    world.fence("d", method="retrain")
    assert world.cohort(run_id).recovery == Recover(until_round=0)


def test_only_fenced_cohorts_are_under_recovery() -> None:
    topology = {"kind": "clusters", "num_clusters": 2, "assignment": "random"}
    world, _ = with_run("a", "b", "c", "d", topology=topology, stop={"rounds": 8})
    go_on(world, 3)
    world.fence("a", method="rapid", params=QUICK)
    fenced = {line.cohort_id for line in world.state.affected_cohorts.values()}
    assert len(fenced) == 1
    assert {c.id for c in world.state.cohorts.values() if c.recovery is not None} == fenced


@pytest.mark.parametrize(
    ("method", "params"),
    [("rapid", {"first_order_every": 0}), ("rapid", {"x": 1}), ("retrain", QUICK), ("auto", QUICK)],
)
def test_parameters_that_do_not_fit_the_method_are_refused(method: str, params: dict[str, Any]) -> None:
    world, _ = with_run("a", "b", "c")
    with pytest.raises(Rejected, match="invalid-request"):
        world.file("a", method=method, params=params)
