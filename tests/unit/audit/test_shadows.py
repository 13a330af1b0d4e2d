"""The likelihood-ratio attack on a small federation: what its shadows have to be like to see anything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from services.audit.client import ShadowModels, audit
from services.audit.spec import SHADOW_ROUNDS, Audit
from services.data.sources import Dataset, load
from services.models.build import build
from services.models.weights import save_tensors
from services.training.local import delta, snapshot, train
from services.training.local_spec import LocalTraining
from services.training.task import Classifier
from services.wire.v1.runs import ModelSpec

CPU = torch.device("cpu")
SPEC = ModelSpec(name="mlp", params={"input_shape": [8, 8], "num_classes": 10, "hidden": [32]})
LOCAL = LocalTraining(epochs=4, batch_size=16, learning_rate=0.2)
NUM_CLIENTS, SAMPLES, ROUNDS, NUM_SHADOWS = 3, 60, 8, 6


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As workers do: threads of so small a model wait for each other only."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def clients() -> list[Dataset]:
    """Equal shares; a fifth of the labels is wrong, which only whoever has seen them can know."""
    data, rng = load("digits"), np.random.default_rng(0)
    x, y = np.concatenate([data.x_train, data.x_test]), np.concatenate([data.y_train, data.y_test])
    order = rng.permutation(len(y))
    y = np.where(rng.random(len(y)) < 0.2, rng.integers(0, 10, len(y)), y)
    parts = (order[2 * SAMPLES * k : 2 * SAMPLES * (k + 1)] for k in range(NUM_CLIENTS))
    return [Dataset(x[p[:SAMPLES]], y[p[:SAMPLES]], x[p[SAMPLES:]], y[p[SAMPLES:]]) for p in parts]


def averaged(members: list[Dataset]) -> torch.nn.Module:
    model, local = build(SPEC, seed=1), build(SPEC, seed=1)
    for number in range(ROUNDS):
        base = snapshot(model)
        total = {name: torch.zeros_like(value) for name, value in base.items()}
        for k, data in enumerate(members):
            local.load_state_dict(base)
            train(Classifier(data), local, LOCAL, 100 * number + k, CPU)
            for name, step in delta(base, local.state_dict()).items():
                total[name] += step / len(members)
        model.load_state_dict({name: base[name] + total[name] for name in base})
    return model


def test_shadows_of_the_runs_own_line_see_a_member_that_purely_local_ones_miss(tmp_path: Path) -> None:
    leaver, *others = clients()
    before, after = averaged([leaver, *others]), averaged(others)
    save_tensors(tmp_path / "after", after.state_dict())

    def power(work: Audit, start: Path | None) -> float:
        """How much higher the attack scores on the model that was trained with the leaver."""
        found = audit(Classifier(leaver), after, work, ShadowModels(SPEC, start), 0, CPU, before=before)
        return found["before_likelihood_auc"] - found["likelihood_auc"]

    alone = Audit(role="leaver", num_shadows=NUM_SHADOWS)
    of_the_line = Audit(
        role="leaver",
        num_shadows=NUM_SHADOWS,
        shadow_training=LOCAL,
        shadow_rounds=SHADOW_ROUNDS,
        shadow_share=1 / NUM_CLIENTS,
    )
    assert power(alone, None) < 0.1
    assert power(of_the_line, tmp_path / "after") > 0.15
