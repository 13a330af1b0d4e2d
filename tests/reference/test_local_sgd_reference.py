"""Local SGD on y = a x + b with squared error, worked out by hand: the gradient of the mean is taken on paper."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from services.training.local import train
from services.training.local_spec import LocalTraining
from services.wire.v1.runs import ModelSpec

POINTS = [(0.0, 1.0), (1.0, 3.0), (2.0, 5.5), (-1.0, -0.5), (0.5, 2.0)]


class Line:
    """The smallest task: two parameters, batches in file order."""

    num_train = len(POINTS)
    num_eval = 0

    def model(self, spec: ModelSpec) -> torch.nn.Module:
        model = torch.nn.Linear(1, 1).double()
        with torch.no_grad():
            model.weight.fill_(0.5)
            model.bias.fill_(-0.25)
        return model

    def train_batches(self, batch_size: int, seed: int) -> Iterator[Any]:
        rows = torch.tensor(POINTS, dtype=torch.float64)
        for first in range(0, len(rows), batch_size):
            yield rows[first : first + batch_size]

    def eval_batches(self, batch_size: int) -> Iterator[Any]:
        return iter(())

    def loss(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        error: torch.Tensor = model(batch[:, :1]) - batch[:, 1:]
        return error.square().mean()

    def score(self, model: torch.nn.Module, batch: Any) -> tuple[float, int, int]:
        return 0.0, 0, len(batch)


def sgd_by_hand(local: LocalTraining) -> tuple[float, float, float]:
    """(a, b, mean of the last epoch's batch losses)."""
    values, velocity = [0.5, -0.25], [0.0, 0.0]
    losses: list[float] = []
    for _ in range(local.epochs):
        losses = []
        for first in range(0, len(POINTS), local.batch_size):
            batch = POINTS[first : first + local.batch_size]
            a, b = values
            errors = [a * x + b - y for x, y in batch]
            losses.append(sum(error**2 for error in errors) / len(batch))
            gradient = [
                sum(2 * error * x for error, (x, _) in zip(errors, batch, strict=True)) / len(batch),
                sum(2 * error for error in errors) / len(batch),
            ]
            norm = (gradient[0] ** 2 + gradient[1] ** 2) ** 0.5
            if local.clip_norm is not None and norm > local.clip_norm:
                gradient = [part * local.clip_norm / norm for part in gradient]
            for i in range(2):
                velocity[i] = local.momentum * velocity[i] + gradient[i] + local.weight_decay * values[i]
                values[i] -= local.learning_rate * velocity[i]
    return values[0], values[1], sum(losses) / len(losses)


@pytest.mark.parametrize(
    "local",
    [
        LocalTraining(epochs=1, batch_size=5),
        LocalTraining(epochs=3, batch_size=2),
        LocalTraining(epochs=2, batch_size=2, momentum=0.9),
        LocalTraining(epochs=2, batch_size=3, momentum=0.5, weight_decay=0.1),
        LocalTraining(epochs=2, batch_size=2, clip_norm=0.3),
    ],
    ids=["one step", "batches", "momentum", "decay", "clip"],
)
def test_local_loop_takes_the_steps_worked_out_by_hand(local: LocalTraining) -> None:
    task = Line()
    model = task.model(ModelSpec(name="custom"))
    metrics = train(task, model, local, seed=0, device=torch.device("cpu"))
    a, b, loss = sgd_by_hand(local)
    state = model.state_dict()
    assert state["weight"].item() == pytest.approx(a, rel=1e-5)  # torch's clipping adds 1e-6 to the norm
    assert state["bias"].item() == pytest.approx(b, rel=1e-5)
    assert metrics["loss"] == pytest.approx(loss, rel=1e-5)
