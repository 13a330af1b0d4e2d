"""What the clients of `lethe bench forgetting` train on, and what a model knows of it.

One client, the leaver, carries a backdoor canary: a patch on half of its samples of other classes, which it calls the
target class. Figures of forgotten data and of membership count its untouched samples only. Strangers are rows of the
same training data that no client got, as many of each class as the leaver has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from services.audit.canaries import success, triggered, with_canary
from services.audit.client import ShadowModels, audit
from services.audit.predictions import classes_of
from services.audit.spec import BEFORE, SHADOW_ROUNDS, Audit, Canary
from services.core.seeds import derive
from services.data.partition import partition
from services.data.sources import Dataset, load
from services.models.build import build
from services.models.weights import load_weights
from services.tensors import codec
from services.tensors.streams import StoredFile
from services.training.local_spec import LocalTraining
from services.training.task import Classifier
from services.wire.v1.runs import ModelSpec

Array = npt.NDArray[Any]
Samples = tuple[Array, Array]
"""Inputs and right classes."""

CPU: Final = torch.device("cpu")
CANARY_SHARE: Final = 0.5
CANARY_SIZE: Final = 6
VALIDATION_SAMPLES: Final = 1000
TEST_SAMPLES: Final = 3000
APART_SAMPLES: Final = 5000
NUM_SHADOWS: Final = 16


@dataclass(frozen=True)
class Case:
    """One federation's data: a function of the data set, the seed and the sizes alone."""

    clients: list[Samples]
    """What each client trains on; the leaver's with its canary."""
    leaver: int
    canary: Canary
    forgotten: Samples
    """The leaver's samples without the stamped ones."""
    strangers: Samples
    """What it might have had as well: the same classes, and nobody was trained on it."""
    validation: Samples
    test: Samples
    model: ModelSpec

    @property
    def remaining(self) -> Samples:
        others = [samples for number, samples in enumerate(self.clients) if number != self.leaver]
        return np.concatenate([x for x, _ in others]), np.concatenate([y for _, y in others])

    def write(self, folder: Path) -> list[str]:
        """A file for each client, as data sources."""
        folder.mkdir()
        for number, (x, y) in enumerate(self.clients):
            np.savez(folder / f"{number}.npz", x_train=x, y_train=y)
        return [f"npz:{folder / f'{number}.npz'}" for number in range(len(self.clients))]

    def write_validation(self, path: Path) -> Path:
        x, y = self.validation
        codec.write_file(path, {"x": x, "y": y})
        return path


def make_case(
    dataset: str,
    seed: int,
    folders: Sequence[Path],
    *,
    model: str,
    num_clients: int,
    samples_per_client: int,
    alpha: float,
) -> Case:
    """The leaver is the client with the median number of samples; validation and strangers are held out of the training
    data."""
    data = load(dataset, folders)
    order = np.random.default_rng(derive(seed, "case")).permutation(len(data.y_train))
    order, apart = np.split(order, [len(order) - min(APART_SAMPLES, len(order) // 5)])
    num_validation = min(VALIDATION_SAMPLES, len(order) // 5)
    held_out, rows = np.split(order[: num_validation + num_clients * samples_per_client], [num_validation])
    parts = partition(data.y_train[rows], num_clients, f"dirichlet:{alpha}", seed)
    clients = [(data.x_train[rows[part]], data.y_train[rows[part]]) for part in parts]
    leaver = sorted(range(num_clients), key=lambda number: (len(clients[number][1]), number))[num_clients // 2]
    canary = Canary(target_class=_rarest(clients[leaver][1]), size=CANARY_SIZE, share=CANARY_SHARE, seed=seed)
    x, y = clients[leaver]
    marked = with_canary(Dataset(x, y, x[:0], y[:0]), canary)
    clients[leaver] = (marked.x_train, marked.y_train)
    untouched = marked.y_train == y
    unknown = apart[_alike(data.y_train[apart], y[untouched])]
    params = {"input_shape": list(x.shape[1:]), "num_classes": int(data.y_train.max()) + 1}
    return Case(
        clients=clients,
        leaver=leaver,
        canary=canary,
        forgotten=(x[untouched], y[untouched]),
        strangers=(data.x_train[unknown], data.y_train[unknown]),
        validation=(data.x_train[held_out], data.y_train[held_out]),
        test=(data.x_test[:TEST_SAMPLES], data.y_test[:TEST_SAMPLES]),
        model=ModelSpec(name=model, params=params),
    )


def _rarest(y: Array) -> int:
    """The class that the leaver has least of: stamping as many samples as it can."""
    return int(np.argmin(np.bincount(y, minlength=2)))


def _alike(labels: Array, wanted: Array) -> Array:
    """The first rows of each class, as many as are wanted of it or as there are."""
    classes, counts = np.unique(wanted, return_counts=True)
    rows = [np.flatnonzero(labels == label)[:count] for label, count in zip(classes, counts, strict=True)]
    return np.concatenate(rows)


def scores(case: Case, weights: Path) -> dict[str, float]:
    """What the model in that file knows of the case's data."""
    model = _loaded(case, weights)
    stamped = triggered(*case.test, case.canary)
    attacked = success(classes_of(model, stamped, CPU), case.canary)
    return {
        "forgotten_accuracy": _accuracy(model, case.forgotten),
        "remaining_accuracy": _accuracy(model, case.remaining),
        "test_accuracy": _accuracy(model, case.test),
        "canary_success": attacked["backdoor_success_rate"],
    }


def attacks(case: Case, weights: Path, before: Path, local: LocalTraining) -> dict[str, float]:
    """What the audit of a request finds, by its own code: `mia_…` and `likelihood_…`, and the same of the model before
    the erasure as `before_…`. Few samples may leave some of them out."""
    torch.set_num_threads(1)  # as workers do; small models gain nothing from more
    task = Classifier(Dataset(*case.forgotten, *case.strangers))
    work = Audit(
        role="leaver",
        num_shadows=NUM_SHADOWS,
        shadow_training=local,
        shadow_rounds=SHADOW_ROUNDS,
        shadow_share=1 / len(case.clients),
    )
    shadows = ShadowModels(case.model, weights)
    found = audit(task, _loaded(case, weights), work, shadows, 0, CPU, before=_loaded(case, before))
    wanted = ("mia_", "likelihood_")
    return {name: value for name, value in found.items() if name.removeprefix(BEFORE).startswith(wanted)}


def _loaded(case: Case, weights: Path) -> torch.nn.Module:
    model = build(case.model, seed=0)
    load_weights(model, StoredFile(weights))
    return model


def _accuracy(model: torch.nn.Module, samples: Samples) -> float:
    x, y = samples
    return float(np.mean(classes_of(model, x, CPU) == y))
