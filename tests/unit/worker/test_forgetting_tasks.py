"""The kinds of task that only an erasure hands out, with a real task runner."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from services.audit.spec import Audit
from services.core import digests
from services.data.sources import Dataset
from services.models.build import build
from services.models.weights import save_tensors
from services.tensors import codec
from services.tensors.streams import StoredFile
from services.training.local_spec import LocalTraining
from services.training.task import Classifier
from services.unlearning.fedforget.spec import Distil
from services.unlearning.pga.spec import Ascend
from services.wire.v1.runs import ModelSpec
from services.wire.v1.work import FIGURES_ONLY, TaskGrant
from worker.execution import GrantedTask, TaskRunner
from worker.failures import WorkFailed

SPEC = ModelSpec(name="mlp", params={"input_shape": [4], "num_classes": 2, "hidden": [3]})
RNG = np.random.default_rng(0)
DATA = Dataset(
    RNG.standard_normal((40, 4)).astype(np.float32), np.arange(40) % 2,
    RNG.standard_normal((10, 4)).astype(np.float32), np.arange(10) % 2,
)  # fmt: skip


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    save_tensors(tmp_path / "weights", build(SPEC, seed=1).state_dict())
    return tmp_path / "weights"


def execute(weights: Path, kind: Any, work: Any) -> Any:
    runner = TaskRunner(lambda: Classifier(DATA), "cpu", weights.parent)
    runner.load()
    digest = digests.of_bytes(weights.read_bytes())
    grant = TaskGrant(
        task_id=UUID(int=1),
        kind=kind,
        run_id=UUID(int=2),
        run_name="a-run",
        cohort="all",
        epoch=1,
        round=9,
        attempt=1,
        lease_token="token",
        lease_expires_at=datetime(2026, 1, 1, tzinfo=UTC),
        heartbeat_every_s=10,
        model=SPEC,
        weights=digest,
        weights_bytes=weights.stat().st_size,
        local=LocalTraining(),
        work=work,
        seed=4,
    )
    grant = TaskGrant.model_validate_json(grant.model_dump_json())
    return runner.execute(GrantedTask(grant, weights, lambda share: None, lambda: False, {digest: weights}))


def works(digest: str) -> dict[str, Any]:
    return {
        "ascend": Ascend(radius=1.0, stop_accuracy=0.0),
        "distil": Distil(local=LocalTraining(), teacher_a=digest, teacher_b=digest),
        "audit": Audit(role="leaver", num_shadows=2, shadow_start=digest),
    }


@pytest.mark.parametrize("kind", ["ascend", "distil", "audit"])
def test_each_kind_returns_what_its_grant_asks_for(kind: str, weights: Path) -> None:
    result = execute(weights, kind, works(digests.of_bytes(weights.read_bytes()))[kind])
    assert result.num_samples == 40
    assert "forgotten_accuracy" in result.metrics
    if kind in FIGURES_ONLY:
        assert result.update is None
    else:
        assert codec.layout_of(StoredFile(result.update.path)) == codec.layout_of(StoredFile(weights)).updatable()


@pytest.mark.parametrize("kind", ["ascend", "distil", "audit"])
def test_a_task_without_its_parameters_fails(kind: str, weights: Path) -> None:
    with pytest.raises(WorkFailed, match="without its parameters"):
        execute(weights, kind, None)
