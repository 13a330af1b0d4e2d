"""The kinds of task that recoveries put in the place of training, on a real workbench."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from services.core import digests
from services.data.sources import Dataset
from services.methods.catalogue import RECOVERY
from services.models.build import build
from services.models.weights import save_tensors
from services.training.local import TrainingStopped
from services.training.local_spec import LocalTraining
from services.training.task import Classifier
from services.wire.v1.runs import ModelSpec
from services.wire.v1.work import TaskGrant
from worker.execution import GrantedTask, Result, TaskRunner
from worker.failures import WorkFailed
from worker.kept import KeptSets

SPEC = ModelSpec(name="mlp", params={"input_shape": [4], "num_classes": 3, "hidden": [6]})
RNG = np.random.default_rng(0)
LABELS = np.array([0] * 20 + [1] * 16 + [2] * 4)
DATA = Dataset(
    (RNG.standard_normal((40, 4)) + LABELS[:, None]).astype(np.float32), LABELS,
    RNG.standard_normal((10, 4)).astype(np.float32), np.arange(10) % 3,
)  # fmt: skip
PARAMS: dict[str, dict[str, Any]] = {
    "fedrs": {"alpha": 0.1},
    "moon": {},
    "quickdrop": {"share": 0.2, "distillation_epochs": 3, "local_epochs": 2},
    "imba_ulrc": {"skewed_class": 2, "encoder_epochs": 3},
}


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    save_tensors(tmp_path / "weights", build(SPEC, seed=1).state_dict())
    return tmp_path / "weights"


def bench(weights: Path, kept: KeptSets | None = None, data: Dataset = DATA) -> TaskRunner:
    made = TaskRunner(lambda: Classifier(data), "cpu", weights.parent)
    made.load()
    made.kept = kept or KeptSets(weights.parent / "kept", weights.parent / "kept.key")
    return made


def grant(weights: Path, method: str | None, number: int = 1) -> TaskGrant:
    """A task of round `number` of three; of no method: ordinary training."""
    kind, work = "train", None
    if method is not None:
        kind = RECOVERY[method].task_kind or ""
        told = {"kind": kind, "recovery": "cohort-1-3", "seed": 5, "number": number, "num_rounds": 3}
        work = {**PARAMS[method], **told}
    return TaskGrant.model_validate(
        {
            "task_id": UUID(int=1),
            "kind": kind,
            "run_id": UUID(int=2),
            "run_name": "a-run",
            "cohort": "all",
            "epoch": 1,
            "round": 3 + number,
            "attempt": 1,
            "lease_token": "token",
            "lease_expires_at": datetime(2026, 1, 1, tzinfo=UTC),
            "heartbeat_every_s": 10,
            "model": SPEC,
            "weights": digests.of_bytes(weights.read_bytes()),
            "weights_bytes": weights.stat().st_size,
            "local": LocalTraining(epochs=1, batch_size=8),
            "work": work,
            "seed": 40 + number,
        }
    )


def execute(on: TaskRunner, weights: Path, method: str | None, number: int = 1, *, stops: bool = False) -> Result:
    return on.execute(GrantedTask(grant(weights, method, number), weights, lambda share: None, lambda: stops))


def digest(result: Result) -> str:
    assert result.update is not None
    return result.update.digest


@pytest.mark.parametrize("method", PARAMS)
def test_each_returns_an_update_of_its_own(method: str, weights: Path) -> None:
    on = bench(weights)
    plain, own = execute(on, weights, None), [execute(on, weights, method, number) for number in (1, 2)]
    assert digest(own[1]) != digest(plain)
    assert all(np.isfinite(result.metrics["loss"]) for result in own)


@pytest.mark.parametrize("method", PARAMS)
def test_a_killed_worker_does_the_same_again(method: str, weights: Path) -> None:
    """What a crash leaves is the directory; the memory is gone."""
    kept = weights.parent / "kept", weights.parent / "kept.key"
    straight = [digest(execute(on, weights, method, n)) for on in [bench(weights)] for n in (1, 2, 3)]
    for path in weights.parent.glob("kept/*"):
        path.unlink()
    crashed = []
    for number in (1, 2, 3):
        with pytest.raises(TrainingStopped):  # in the middle of the task, and then once more from the beginning
            execute(bench(weights, KeptSets(*kept)), weights, method, number, stops=True)
        execute(bench(weights, KeptSets(*kept)), weights, method, number)  # done, and killed before it was handed in
        crashed.append(digest(execute(bench(weights, KeptSets(*kept)), weights, method, number)))
    assert crashed == straight


def test_counts_are_enlarged_by_what_was_made(weights: Path) -> None:
    result = execute(bench(weights), weights, "imba_ulrc")
    assert (result.num_samples, result.metrics["num_generated"]) == (40 + 14, 14)


def test_without_the_class_a_client_trains_on_what_it_has(weights: Path) -> None:
    without = DATA.without(range(36, 40))
    on = bench(weights, data=without)
    result = execute(on, weights, "imba_ulrc")
    assert (result.num_samples, result.metrics["num_generated"]) == (36, 0)
    assert digest(result) == digest(_plain_of_the_same_seed(on, weights))


def _plain_of_the_same_seed(on: TaskRunner, weights: Path) -> Result:
    same = grant(weights, None).model_copy(update={"seed": grant(weights, "imba_ulrc").seed})
    return on.execute(GrantedTask(same, weights, lambda share: None, lambda: False))


def test_with_one_sample_of_the_class_copies_are_made(weights: Path) -> None:
    result = execute(bench(weights, data=DATA.without(range(37, 40))), weights, "imba_ulrc")
    assert (result.num_samples, result.metrics["num_generated"]) == (37 + 17, 17)


def test_a_diverged_encoder_costs_the_samples_and_not_the_round(weights: Path) -> None:
    """A column so large that it has no variance in float32. The model has no weight for it, and steps so small that it
    gets none; so the model trains, and the encoder cannot."""
    x = DATA.x_train.copy()
    x[:, 3] = np.where(np.arange(len(x)) == 0, 3e38, -3e38)
    model = build(SPEC, seed=1)
    first = next(parameter for parameter in model.parameters() if parameter.shape[-1] == 4)
    first.data[:, 3] = 0
    save_tensors(weights, model.state_dict())
    on = bench(weights, data=Dataset(x, DATA.y_train, DATA.x_test, DATA.y_test))
    told = grant(weights, "imba_ulrc")
    told = told.model_copy(update={"local": told.local.model_copy(update={"learning_rate": 1e-60})})
    result = on.execute(GrantedTask(told, weights, lambda share: None, lambda: False))
    assert (result.num_samples, result.metrics["num_generated"]) == (40, 0)
    assert result.metrics["encoder_diverged"] == 1.0 and result.update is not None


def test_what_was_made_is_nowhere_on_disk_and_gone_when_the_recovery_is_over(weights: Path) -> None:
    on = bench(weights)
    for number in (1, 2):
        execute(on, weights, "imba_ulrc", number)
        assert on.kept.recall("cohort-1-3") is not None
    assert not list(weights.parent.glob("kept/*.sealed"))
    execute(on, weights, "imba_ulrc", 3)
    assert on.kept.recall("cohort-1-3") is None


@pytest.mark.parametrize("method", ["imba_ulrc", "moon"])
def test_what_was_kept_goes_when_the_cohort_goes_on_without_the_recovery(method: str, weights: Path) -> None:
    on = bench(weights)
    execute(on, weights, method, 1)
    execute(on, weights, None)
    assert on.kept.recall("cohort-1-3") is None and not list(weights.parent.glob("kept/*.sealed"))


def test_moon_is_contrasted_from_the_second_round_on(weights: Path) -> None:
    on = bench(weights)
    assert [execute(on, weights, "moon", number).metrics["is_contrasted"] for number in (1, 2, 3)] == [0, 1, 1]
    assert len(list(weights.parent.glob("kept/*.sealed"))) == 2, "the newest, and the one it was trained against"


def test_a_distilled_set_is_sealed_and_made_anew_without_erased_samples(weights: Path) -> None:
    on = bench(weights)
    result = execute(on, weights, "quickdrop")
    assert result.metrics["num_distilled"] == 4 + 4 + 1
    (sealed,) = weights.parent.glob("kept/*.sealed")
    first = sealed.read_bytes()
    assert not any(row.tobytes() in first for row in DATA.x_train)
    execute(on, weights, "quickdrop", 2)
    assert sealed.read_bytes() == first, "it is made once"
    assert on.leave_out([0, 36, 37]) == []
    assert not sealed.exists() and not (weights.parent / "kept.key").exists()
    assert execute(on, weights, "quickdrop", 3).metrics["num_distilled"] == 4 + 4 + 1
    known = [on.kept.read(name) for name in _names_of_sets(on)]
    assert all(not np.array_equal(row, DATA.x_train[36]) for found in known if found for row in found["x"].numpy())


def _names_of_sets(on: TaskRunner) -> list[str]:
    from services.recovery.quickdrop.client import _name

    class Hand:
        parameters = grant(Path(on.scratch / "weights"), "quickdrop").work
        spec = SPEC

    return [_name(Hand())]  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["imba_ulrc", "quickdrop"])
def test_texts_are_refused_with_a_reason(method: str, weights: Path) -> None:
    tokens = Dataset(RNG.integers(0, 9, (20, 4)), np.arange(20) % 3, RNG.integers(0, 9, (0, 4)), np.arange(0))
    with pytest.raises(WorkFailed, match="images or tables of numbers"):
        execute(bench(weights, data=tokens), weights, method)
