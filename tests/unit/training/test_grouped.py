"""Clients trained in a group get the updates that they would have got alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from services.data.sources import Dataset, load
from services.training.grouped import TOLERANCE, Member, Trained, can_group, train_each, train_sum
from services.training.local import TrainingFailed, delta, snapshot, train
from services.training.local_spec import LocalTraining
from services.training.task import Classifier
from services.wire.v1.runs import ModelSpec

MLP = ModelSpec(name="mlp", params={"input_shape": [8, 8], "num_classes": 10, "hidden": [16]})
DEEP = ModelSpec(name="mlp", params={"input_shape": [8, 8], "num_classes": 10, "hidden": [16, 12]})
CONVOLUTIONAL = ModelSpec(name="cnn", params={"input_shape": [8, 8], "num_classes": 10})


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def members() -> list[Member]:
    """Of very different sizes: from 10 to 100 batches' worth of samples, so that some finish before others."""
    return [Member(Classifier(load(f"digits#part={i}/7,how=dirichlet:0.5,seed=3")), seed=100 + i) for i in range(7)]


def alone(members: Sequence[Member], model: torch.nn.Module, local: LocalTraining) -> list[Trained]:
    found = []
    for member in members:
        base = snapshot(model)
        metrics = train(member.task, model, local, member.seed, torch.device("cpu"))
        found.append(Trained(delta(base, model.state_dict()), metrics))
        model.load_state_dict(base)
    return found


def together(members: Sequence[Member], model: torch.nn.Module, local: LocalTraining, size: int = 4) -> list[Trained]:
    outcomes = list(train_each(members, model, local, group_size=size))
    assert all(isinstance(outcome, Trained) for outcome in outcomes)
    return [outcome for outcome in outcomes if isinstance(outcome, Trained)]


def flat(update: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([update[name].flatten() for name in sorted(update)])


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return float((flat(one) - flat(other)).norm() / flat(other).norm())


@pytest.mark.parametrize("spec", [MLP, DEEP], ids=["one hidden layer", "two"])
@pytest.mark.parametrize(
    "local",
    [
        LocalTraining(batch_size=20),
        LocalTraining(batch_size=32, epochs=3, learning_rate=0.2),
        LocalTraining(batch_size=20, epochs=2, momentum=0.9, weight_decay=0.01),
        LocalTraining(batch_size=20, weight_decay=0.1),
        LocalTraining(batch_size=20, epochs=2, clip_norm=0.5, momentum=0.5),
    ],
    ids=["plain", "epochs", "momentum and decay", "decay", "clip"],
)
def test_group_and_single_path_agree_within_the_tolerance(
    members: list[Member], spec: ModelSpec, local: LocalTraining
) -> None:
    model = members[0].task.model(spec)
    assert can_group(members, model, local)
    for ours, theirs in zip(together(members, model, local), alone(members, model, local), strict=True):
        assert ours.delta.keys() == theirs.delta.keys()
        assert distance(ours.delta, theirs.delta) < TOLERANCE
        assert ours.metrics["loss"] == pytest.approx(theirs.metrics["loss"], rel=TOLERANCE)


def test_equal_group_sizes_give_equal_bits(members: list[Member]) -> None:
    model, local = members[0].task.model(MLP), LocalTraining(batch_size=20, epochs=2)
    for one, same in zip(together(members, model, local), together(members, model, local), strict=True):
        assert torch.equal(flat(one.delta), flat(same.delta))
        assert one.metrics == same.metrics


def summed(members: Sequence[Member], weights: Sequence[float], outcomes: Sequence[Trained]) -> dict[str, torch.Tensor]:
    return {
        name: sum(
            (weight * outcome.delta[name] for weight, outcome in zip(weights, outcomes, strict=True)), torch.zeros(())
        )
        for name in outcomes[0].delta
    }


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("spec", [MLP, CONVOLUTIONAL], ids=["grouped", "one by one"])
def test_the_sum_is_that_of_the_updates(members: list[Member], spec: ModelSpec, momentum: float) -> None:
    model, local = members[0].task.model(spec), LocalTraining(batch_size=20, momentum=momentum)
    weights = [float(member.task.num_train) for member in members]
    found = train_sum(members, weights, model, local, group_size=4)
    assert distance(found.delta, summed(members, weights, together(members, model, local))) < TOLERANCE
    assert len(found.metrics) == len(members)


@pytest.mark.parametrize("spec", [MLP, DEEP], ids=["one hidden layer", "two"])
def test_the_sum_of_clients_with_few_samples_agrees_with_the_single_path(spec: ModelSpec) -> None:
    """Fewer samples than features: the first layer is kept in its dual form."""
    tasks = [Classifier(load(f"digits#part={i}/50,how=dirichlet:1,seed=3")) for i in range(7)]
    assert max(task.num_train for task in tasks) < 64
    members = [Member(task, seed=i) for i, task in enumerate(tasks)]
    model, local = tasks[0].model(spec), LocalTraining(batch_size=8, epochs=3, learning_rate=0.2)
    weights = [1.0 + i for i in range(7)]
    for _ in range(2):
        expected = alone(members, model, local)
        found = train_sum(members, weights, model, local, group_size=4)
        assert distance(found.delta, summed(members, weights, expected)) < TOLERANCE
        for mine, theirs in zip(found.metrics, expected, strict=True):
            assert mine["loss"] == pytest.approx(theirs.metrics["loss"], rel=TOLERANCE)
        tasks[0].leave_out([int(load("digits#part=0/50,how=dirichlet:1,seed=3").rows_train[1])])


@pytest.mark.parametrize(
    ("spec", "local"),
    [(CONVOLUTIONAL, LocalTraining()), (MLP, LocalTraining(optimizer="adamw", learning_rate=0.01))],
    ids=["convolutions", "adamw"],
)
def test_what_cannot_be_grouped_has_the_bits_of_the_single_path(
    members: list[Member], spec: ModelSpec, local: LocalTraining
) -> None:
    model = members[0].task.model(spec)
    assert not can_group(members, model, local)
    for ours, theirs in zip(together(members[:2], model, local), alone(members[:2], model, local), strict=True):
        assert torch.equal(flat(ours.delta), flat(theirs.delta))
        assert ours.metrics == theirs.metrics


def test_a_task_with_a_loss_of_its_own_is_not_grouped(members: list[Member]) -> None:
    class Weighted(Classifier):
        def loss(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
            return super().loss(model, batch) * 2

    own = Member(Weighted(load("digits#part=0/7")), seed=1)
    assert not can_group([*members, own], members[0].task.model(MLP), LocalTraining())


def test_the_model_is_left_as_it_was(members: list[Member]) -> None:
    for spec in (MLP, CONVOLUTIONAL):
        model = members[0].task.model(spec)
        before = snapshot(model)
        together(members[:2], model, LocalTraining())
        assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_zero_epochs_give_zero_updates(members: list[Member]) -> None:
    for outcome in together(members, members[0].task.model(MLP), LocalTraining(epochs=0)):
        assert not flat(outcome.delta).any()
        assert outcome.metrics == {}


def test_one_member_that_diverges_leaves_the_others_alone(members: list[Member]) -> None:
    data = load("digits#part=0/7")
    wild = Member(Classifier(Dataset(data.x_train * np.float32(1e20), data.y_train, data.x_test, data.y_test)), seed=1)
    model, local = members[0].task.model(MLP), LocalTraining(batch_size=20)
    first, failed, last = train_each([members[0], wild, members[1]], model, local, group_size=3)
    assert isinstance(failed, TrainingFailed) and "local.learning_rate" in str(failed)
    for outcome, expected in zip((first, last), alone(members[:2], model, local), strict=True):
        assert isinstance(outcome, Trained)
        assert distance(outcome.delta, expected.delta) < TOLERANCE
    with pytest.raises(TrainingFailed, match="step"):
        train_sum([members[0], wild], [1.0, 1.0], model, local, group_size=2)
