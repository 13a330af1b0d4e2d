"""Each method from start to end on digits, with real kernels and clients: the leaver's canary goes, accuracy stays."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from services.audit.canaries import success, triggered, with_canary
from services.audit.predictions import classes_of
from services.audit.spec import Canary
from services.data.partition import partition
from services.data.sources import Dataset, load
from services.training.local_spec import LocalTraining
from services.wire.v1.runs import ModelSpec, RunSpec, StopRule
from tests.support.small_federation import SmallFederation

CPU = torch.device("cpu")
CANARY = Canary(target_class=7, seed=5, share=0.5)
DIGITS = load("digits")
ROUNDS = 8


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> SmallFederation:
    parts = partition(DIGITS.y_train, 4, "iid", 0)
    data = {
        name: Dataset(DIGITS.x_train[rows], DIGITS.y_train[rows], DIGITS.x_test, DIGITS.y_test)
        for name, rows in zip(("a", "b", "c", "u"), parts, strict=True)
    }
    data["u"] = with_canary(data["u"], CANARY)
    spec = RunSpec(
        name="digits",
        model=ModelSpec(name="mlp", params={"input_shape": [8, 8], "num_classes": 10, "hidden": [32]}),
        local=LocalTraining(epochs=4, learning_rate=0.1, momentum=0.5),
        stop=StopRule(rounds=ROUNDS),
    )
    federation = SmallFederation(tmp_path_factory.mktemp("blobs"), spec, data)
    federation.train(ROUNDS)
    assert judged(federation)[0] > 0.85 and judged(federation)[1] > 0.5
    return federation


def judged(federation: SmallFederation) -> tuple[float, float]:
    """(accuracy on clean test samples, success of the canary)."""
    model = federation.head()
    accuracy = float(np.mean(classes_of(model, DIGITS.x_test, CPU) == DIGITS.y_test))
    found = success(classes_of(model, triggered(DIGITS.x_test, DIGITS.y_test, CANARY), CPU), CANARY)
    return accuracy, found["backdoor_success_rate"]


@pytest.mark.parametrize(
    ("method", "recovery", "params"),
    [
        ("federaser", 0, {}),
        ("pga", 2, {}),
        ("fedforget", 2, {}),
        ("not", 10, {}),
        ("sifu", 0, {"noise": 0.01}),
    ],
)
def test_the_canary_goes_and_accuracy_stays(
    trained: SmallFederation, method: str, recovery: int, params: dict[str, Any]
) -> None:
    federation = copy.deepcopy(trained)
    federation.forget("u", method, recovery, **params)
    accuracy, backdoor = judged(federation)
    assert accuracy > 0.85
    assert backdoor <= 0.2


def test_fedrecovery_weakens_the_canary_without_any_training(trained: SmallFederation) -> None:
    federation = copy.deepcopy(trained)
    federation.forget("u", "fedrecovery", 0)
    accuracy, backdoor = judged(federation)
    assert federation.client_epochs == 0
    assert accuracy > 0.85
    assert backdoor < 0.7 * judged(trained)[1]


def test_federaser_costs_less_than_half_of_retraining(trained: SmallFederation) -> None:
    federation = copy.deepcopy(trained)
    federation.forget("u", "federaser", 0)
    assert federation.client_epochs * 2 < 3 * 4 * ROUNDS  # three clients, four epochs each


def test_the_same_erasure_ends_with_the_same_bytes(trained: SmallFederation) -> None:
    heads = []
    for _ in range(2):
        federation = copy.deepcopy(trained)
        federation.forget("u", "federaser", 0, interval=4)
        heads.append(federation.models[max(federation.models)])
    assert heads[0] == heads[1]
