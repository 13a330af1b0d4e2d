"""The federation of `lethe bench recovery`: five clients, the first of which holds most of one class and leaves.

Everything runs in one process by the methods' own client code; what the server does is a weighted mean. All recoveries
of a cell begin with the same unlearned model, and those of Imba-ULRc share the encoders.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from services.core.seeds import derive
from services.data.dataset import Array, Dataset
from services.data.sources import load
from services.methods.catalogue import RECOVERY
from services.methods.references import resolve
from services.models.build import initialise
from services.program.client import TaskInHand
from services.recovery.classes import fingerprint
from services.recovery.imba_ulrc.client import Made, oversample
from services.recovery.imba_ulrc.encoder import Autoencoder, train_encoder
from services.recovery.imba_ulrc.spec import ImbaUlrc
from services.training import local
from services.training.local_spec import LocalTraining
from services.training.task import Classifier
from services.unlearning.pga.client import ascend
from services.unlearning.pga.spec import NUM_RANDOM_MODELS, Ascend
from services.wire.v1.runs import ModelSpec
from worker.kept import KeptSets

CPU: Final = torch.device("cpu")
NUM_CLIENTS: Final = 5
SKEWED: Final = 7
"""The paper's class, by the accuracies that it prints: 147 test samples of USPS."""
HELD_OUT: Final = 0.1
"""Of the training data: what the ascent is stopped by."""
FORGOTTEN: Final = 0.001
SOURCES: Final = {"mnist": "mnist", "fashion-mnist": "fashion-mnist", "usps": "npz:usps.npz"}
LOCAL: Final = LocalTraining(epochs=2, batch_size=64, learning_rate=0.01, momentum=0.5)
RECOVERY_ROUNDS: Final = 10
PATIENCE: Final = 10
"""Rounds without a better model on what is held out, after which training has converged."""
REACHES: Final = tuple(0.01 * 1.05**number for number in range(95))
"""Distances of the ascent as parts of the ball's radius; it is stopped at the first that is far enough."""
UNLEARNED: Final = {
    "mnist": {0.80: 0.7342, 0.85: 0.7675, 0.90: 0.7981},
    "fashion-mnist": {0.80: 0.5057, 0.85: 0.5441, 0.90: 0.4418},
    "usps": {0.80: 0.1131, 0.85: 0.1784, 0.90: 0.1340},
}
"""Balanced accuracy of the paper's unlearned models by α (Table 2): how far it lets the leaver ascend."""


@dataclass(frozen=True)
class Cell:
    dataset: str
    alpha: float
    """The leaver's share of the skewed class."""
    seed: int
    samples: int | None
    """Of the training data, at random; None: all."""
    rounds: int
    encoder_epochs: int
    folders: tuple[Path, ...]

    @property
    def name(self) -> str:
        return f"{self.dataset} α = {self.alpha:g} seed {self.seed}"


@dataclass(frozen=True)
class Shares:
    clients: list[tuple[Array, Array]]
    held_out: tuple[Array, Array]
    test: tuple[Array, Array]


Weights = dict[str, Tensor]


def shares(cell: Cell) -> Shares:
    """The leaver has `alpha` of the skewed class, and so much of the other classes that it has as many samples as any
    client; the others have equal parts of the rest."""
    data = load(SOURCES[cell.dataset], cell.folders)
    draw = np.random.default_rng(derive(cell.seed, "recovery", cell.dataset))
    rows = draw.permutation(len(data.y_train))[: cell.samples]
    held_out, rows = np.split(rows, [int(HELD_OUT * len(rows))])
    num_skewed = int((data.y_train[rows] == SKEWED).sum())
    others = (len(rows) / NUM_CLIENTS - cell.alpha * num_skewed) / (len(rows) - num_skewed)
    parts: list[list[Array]] = [[] for _ in range(NUM_CLIENTS)]
    for label in range(int(data.y_train.max()) + 1):
        own = rows[data.y_train[rows] == label]
        first = cell.alpha if label == SKEWED else others
        cuts = np.rint(len(own) * (first + (1 - first) / (NUM_CLIENTS - 1) * np.arange(NUM_CLIENTS - 1))).astype(int)
        for part, taken in zip(parts, np.split(own, cuts), strict=True):
            part.append(taken)
    clients = [(data.x_train[(own := np.sort(np.concatenate(part)))], data.y_train[own]) for part in parts]
    return Shares(clients, (data.x_train[held_out], data.y_train[held_out]), (data.x_test, data.y_test))


def network(dataset: str, seed: int) -> nn.Module:
    """The paper's: with one hidden layer, for USPS with two convolutions; its sizes are ours."""
    layers: list[nn.Module]
    if dataset == "usps":
        layers = [nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU()]
        layers += [nn.Conv2d(10, 20, 5), nn.Dropout2d(), nn.MaxPool2d(2), nn.ReLU()]
        layers += [nn.Flatten(), nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 10)]
    else:
        layers = [nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Dropout(), nn.Linear(128, 10)]
    model = nn.Sequential(*layers)
    initialise(model, torch.Generator().manual_seed(seed))
    return model


class Federation:
    def __init__(self, cell: Cell) -> None:
        self.cell, self.shares = cell, shares(cell)
        x, y = self.shares.test
        self._tasks = [Classifier(Dataset(*own, x[:0], y[:0])) for own in self.shares.clients]
        self._model = network(cell.dataset, derive(cell.seed, "init"))
        self._encoders: dict[int, Autoencoder] = {}

    # training and unlearning

    def trained(self) -> tuple[Weights, Weights, Weights]:
        """(model, the model before its last round, the leaver's update in that round), once it has converged."""
        weights = before = own = _copied(self._model.state_dict())
        best, since = 0.0, 0
        for number in range(1, self.cell.rounds + 1):
            before = weights
            deltas = [self._update(before, client, number) for client in range(NUM_CLIENTS)]
            answers = [(d, float(task.num_train)) for d, task in zip(deltas, self._tasks, strict=True)]
            weights, own = _mean(before, answers), deltas[0]
            accuracy = self.judge(weights, self.shares.held_out)["balanced_accuracy"]
            best, since = (accuracy, 0) if accuracy > best else (best, since + 1)
            if since == PATIENCE:
                break
        return weights, before, own

    def unlearned(self, weights: Weights, base: Weights, own: Weights) -> Weights:
        """PGA: from the mean without the leaver's last update, as far as the class is forgotten and the paper's
        unlearned model is no better."""
        share = self._tasks[0].num_train / sum(task.num_train for task in self._tasks)
        reference = {
            name: (w + (share * (w - base[name]) - share * own[name]) / (1 - share)) for name, w in weights.items()
        }
        radius = self._radius(self._with(reference))
        least = UNLEARNED[self.cell.dataset].get(self.cell.alpha, 1.0)
        for reach in REACHES:
            model = self._with(reference)
            far = reach * radius
            work = Ascend(radius=radius, distance_bound=far, stop_accuracy=0, max_epochs=50, check_every=1_000_000)
            ascend(self._tasks[0], model, work, derive(self.cell.seed, "ascent"), CPU)
            climbed = _copied(model.state_dict())
            held_out, its_own = (self.judge(climbed, one) for one in (self.shares.held_out, self.shares.clients[0]))
            is_forgotten = held_out["skewed_accuracy"] == its_own["skewed_accuracy"] == 0
            if is_forgotten and held_out["balanced_accuracy"] <= least:
                return climbed
        raise AssertionError(f"{self.cell.name}: the leaver's ascent does not forget class {SKEWED}")

    # recovery

    def recovered(self, start: Weights, method: str, params: Mapping[str, Any]) -> Iterator[Weights]:
        """The model after each round."""
        found = RECOVERY[method]
        kind = found.task_kind
        kept = [KeptSets() for _ in self._tasks]
        weights = start
        for number in range(1, RECOVERY_ROUNDS + 1):
            answers = []
            for client in range(1, NUM_CLIENTS):
                if kind is None:
                    answers.append((self._update(weights, client, 1000 + number), float(self._tasks[client].num_train)))
                    continue
                work = found.client_work[kind]
                assert work.parameters is not None
                told = {"recovery": "bench", "seed": derive(self.cell.seed, "recovery"), "number": number}
                parameters = work.parameters.model_validate({**params, **told, "num_rounds": RECOVERY_ROUNDS})
                if isinstance(parameters, ImbaUlrc) and number == 1 and parameters.oversample:
                    kept[client].remember("bench", self._made(client, parameters))
                answers.append(self._answer(weights, client, number, resolve(work.handler), parameters, kept[client]))
            weights = _mean(weights, answers)
            yield weights

    def judge(self, weights: Weights, samples: tuple[Array, Array] | None = None) -> dict[str, float]:
        """Accuracy on the skewed class, and the mean over the accuracies on each class."""
        x, y = samples or self.shares.test
        model = self._with(weights).eval()
        with torch.inference_mode():
            guesses = np.concatenate(
                [model(part).argmax(dim=1).numpy() for part in torch.split(torch.from_numpy(x), 1024)]
            )
        by_class = [float((guesses[y == label] == label).mean()) for label in np.unique(y)]
        return {"skewed_accuracy": by_class[SKEWED], "balanced_accuracy": float(np.mean(by_class))}

    def _made(self, client: int, work: ImbaUlrc) -> Made:
        x, y = self._tasks[client].train_arrays
        seed = derive(self.cell.seed, "recovery")
        if client not in self._encoders:
            rows = torch.from_numpy(x).flatten(1)
            self._encoders[client] = train_encoder(rows, torch.from_numpy(y), work, False, seed)
        return Made(oversample(x, y, self._encoders[client], work, SKEWED, seed), fingerprint(x, y))

    def _answer(
        self, weights: Weights, client: int, number: int, handler: Any, parameters: Any, kept: KeptSets
    ) -> tuple[Weights, float]:
        model = self._with(weights)
        hand = TaskInHand(
            task=self._tasks[client],
            model=model,
            spec=ModelSpec(name="custom"),
            parameters=parameters,
            local=LOCAL,
            seed=derive(self.cell.seed, "local", 1000 + number, client),
            device=CPU,
            signals={"on_progress": lambda share: None, "should_stop": lambda: False},
            blobs={},
            kept=kept,
        )
        figures = handler(hand)
        count = float(figures.get("num_samples", self._tasks[client].num_train))
        return local.delta(weights, model.state_dict()), count

    def _update(self, weights: Weights, client: int, number: int) -> Weights:
        model = self._with(weights)
        local.train(self._tasks[client], model, LOCAL, derive(self.cell.seed, "local", number, client), CPU)
        return local.delta(weights, model.state_dict())

    def _radius(self, reference: nn.Module) -> float:
        squares = []
        for number in range(NUM_RANDOM_MODELS):
            other = network(self.cell.dataset, derive(self.cell.seed, "random", number))
            pairs = zip(reference.parameters(), other.parameters(), strict=True)
            with torch.no_grad():
                squares.append(math.fsum(float(((a.double() - b.double()) ** 2).sum()) for a, b in pairs))
        return math.sqrt(math.fsum(squares) / len(squares) / 3)

    def _with(self, weights: Weights) -> nn.Module:
        model = copy.deepcopy(self._model)
        model.load_state_dict(weights)
        return model


def _mean(base: Weights, answers: Sequence[tuple[Weights, float]]) -> Weights:
    total = math.fsum(weight for _, weight in answers)
    changes = {name: sum(delta[name].double() * (weight / total) for delta, weight in answers) for name in base}
    return {name: (tensor.double() + changes[name]).to(tensor.dtype) for name, tensor in base.items()}


def _copied(state: Mapping[str, Tensor]) -> Weights:
    return {name: tensor.detach().clone() for name, tensor in state.items()}
