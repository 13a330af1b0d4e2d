"""What the leaver does: climbing inside the ball, distilling, and what happens when either goes wrong."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from services.data.sources import Dataset
from services.models.build import build
from services.training.local import TrainingFailed, TrainingStopped, snapshot, train
from services.training.local_spec import LocalTraining
from services.training.task import Classifier
from services.unlearning.fedforget.client import distil, forgetting_loss, quasi_competent, taught
from services.unlearning.fedforget.spec import Distil
from services.unlearning.own_accuracy import own_accuracy
from services.unlearning.pga.client import ascend, distance
from services.unlearning.pga.spec import Ascend
from services.wire.v1.runs import ModelSpec

CPU = torch.device("cpu")
SPEC = ModelSpec(name="mlp", params={"input_shape": [6], "num_classes": 3, "hidden": [8]})
DIGEST = "sha256:" + "0" * 64


def task(num_samples: int = 90) -> Classifier:
    rng = np.random.default_rng(0)
    labels = np.arange(num_samples) % 3
    inputs = rng.standard_normal((num_samples, 6)).astype(np.float32) + 3 * np.eye(3, 6, dtype=np.float32)[labels]
    return Classifier(Dataset(inputs, labels, inputs[:6], labels[:6]))


@pytest.fixture(scope="module")
def trained() -> nn.Module:
    model = build(SPEC, seed=1)
    train(task(), model, LocalTraining(epochs=20, learning_rate=0.1), 0, CPU)
    assert own_accuracy(task(), model, CPU) > 0.9
    return model


def copy(model: nn.Module) -> nn.Module:
    twin = build(SPEC, seed=0)
    twin.load_state_dict(snapshot(model))
    return twin


def ball(**changed: Any) -> Ascend:
    return Ascend(**{"radius": 100.0, "stop_accuracy": 1 / 3, "learning_rate": 0.1, "check_every": 1, **changed})


def test_the_ascent_ends_when_the_leavers_accuracy_is_at_chance(trained: nn.Module) -> None:
    model = copy(trained)
    figures = ascend(task(), model, ball(max_epochs=100), 0, CPU)
    assert figures["forgotten_accuracy"] <= 1 / 3
    assert 0 < figures["num_steps"] < 100
    assert figures["diverged"] == 0
    assert own_accuracy(task(), model, CPU) == figures["forgotten_accuracy"]


def test_the_ascent_never_leaves_the_ball(trained: nn.Module) -> None:
    model = copy(trained)
    figures = ascend(task(), model, ball(radius=0.05, stop_accuracy=0.0, max_epochs=10), 0, CPU)
    assert figures["num_projections"] > 0
    assert distance(list(model.parameters()), list(trained.parameters())) <= 0.05 * (1 + 1e-5)


def test_the_ascent_stops_at_the_distance_bound(trained: nn.Module) -> None:
    bounded = ball(distance_bound=0.01, stop_accuracy=0.0, learning_rate=0.01, batch_size=8)
    assert ascend(task(), copy(trained), bounded, 0, CPU)["num_steps"] < 5


def test_a_leaver_that_is_at_chance_already_does_not_climb(trained: nn.Module) -> None:
    model = copy(trained)
    figures = ascend(task(), model, ball(stop_accuracy=1.0), 0, CPU)
    assert figures["num_steps"] == 0 and figures["distance"] == 0


class Diverging(Classifier):
    """The loss is infinite from its n-th call on."""

    def __init__(self, data: Dataset, after: int) -> None:
        super().__init__(data)
        self.calls_left = after

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        self.calls_left -= 1
        return super().loss(model, batch) * (math.inf if self.calls_left < 0 else 1.0)


def test_a_diverging_ascent_keeps_the_last_finite_weights_and_says_so(trained: nn.Module) -> None:
    model = copy(trained)
    figures = ascend(Diverging(task()._data, after=2), model, ball(stop_accuracy=0.0, batch_size=8), 0, CPU)
    assert (figures["diverged"], figures["num_steps"]) == (1, 2)
    assert all(bool(torch.isfinite(param).all()) for param in model.parameters())


def test_an_ascent_that_diverges_at_once_fails(trained: nn.Module) -> None:
    with pytest.raises(TrainingFailed, match="not finite"):
        ascend(Diverging(task()._data, after=0), copy(trained), ball(stop_accuracy=0.0), 0, CPU)


def test_the_ascent_is_the_same_every_time_and_can_be_stopped(trained: nn.Module) -> None:
    models = [copy(trained), copy(trained)]
    for model in models:
        ascend(task(), model, ball(max_epochs=2, stop_accuracy=0.0), 3, CPU)
    assert all(torch.equal(a, b) for a, b in zip(*(m.parameters() for m in models), strict=True))
    with pytest.raises(TrainingStopped):
        ascend(task(), copy(trained), ball(), 0, CPU, should_stop=lambda: True)


def work(**changed: Any) -> Distil:
    local = LocalTraining(epochs=10, batch_size=16, learning_rate=0.1, clip_norm=1.0)
    return Distil(**{"local": local, "teacher_a": DIGEST, **changed})


def test_the_quasi_competent_teacher_ranks_the_right_class_last() -> None:
    logits = torch.tensor([[3.0, 1.0, 2.0], [0.0, -1.0, 5.0]])
    assert quasi_competent(logits, torch.tensor([0, 2])).tolist() == [[1, 1, 2], [0, -1, -1]]


def test_distilling_the_quasi_competent_teacher_forgets_the_leavers_answers(trained: nn.Module) -> None:
    model = copy(trained)
    figures = distil(taught(task(), trained, None, work(), CPU), model, work().local, 0, CPU)
    assert figures["forgotten_accuracy"] > 0.9  # of the model as it was received
    assert own_accuracy(task(), model, CPU) < 0.5  # the right class is tied with the last


def test_distilling_both_teachers_moves_away_from_the_leavers_own_model(trained: nn.Module) -> None:
    own = copy(trained)
    train(task(), own, LocalTraining(epochs=10, learning_rate=0.1), 0, CPU)
    model = copy(trained)
    both = work(teacher="global", teacher_b=DIGEST, alpha=0.1, lambda_neg=3.5)
    distil(taught(task(), trained, own, both, CPU), model, both.local, 0, CPU)
    assert own_accuracy(task(), model, CPU) < own_accuracy(task(), own, CPU)
    assert all(bool(torch.isfinite(param).all()) for param in model.parameters())


def test_samples_beyond_the_cap_push_no_further() -> None:
    logits = torch.tensor([[-50.0, 50.0, 0.0]], requires_grad=True)
    loss = forgetting_loss(logits, torch.tensor([0]), logits.detach(), None, work(teacher="global", alpha=0.5))
    (gradient,) = torch.autograd.grad(loss, logits)
    assert loss.item() == pytest.approx(-0.5 * 3.0 * math.log(3), rel=1e-6)
    assert gradient.abs().max() < 1e-6


class Unlabelled:
    num_train, num_eval = 1, 0


def test_a_task_without_logits_cannot_distil(trained: nn.Module) -> None:
    own_task: Any = Unlabelled()
    with pytest.raises(TrainingFailed, match="predict"):
        taught(own_task, trained, None, work(), CPU)
