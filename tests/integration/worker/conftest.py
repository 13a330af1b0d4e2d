from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from services.models.weights import save_tensors
from tests.support.scripted_coordinator import ScriptedCoordinator
from worker.settings import WorkerOptions

OWN_TASK = '''
import time
import torch
from torch import nn

class Line:
    """One number in, one out. The data text says how it behaves."""
    num_train = num_eval = 8
    patient = "Jane Doe"

    def __init__(self, behaviour="well"):
        self.behaviour = behaviour

    def model(self, spec):
        return nn.Linear(1, 1)

    def train_batches(self, batch_size, seed):
        numbers = torch.Generator().manual_seed(seed)
        for _ in range(max(1, self.num_train // batch_size)):
            if self.behaviour == "slow":
                time.sleep(0.02)
            yield torch.rand(batch_size, 1, generator=numbers)

    def eval_batches(self, batch_size):
        yield torch.ones(8, 1)

    def loss(self, model, batch):
        if self.behaviour == "quotes data":
            raise ValueError(f"cannot handle {self.patient}")
        if self.behaviour == "out of memory":
            raise MemoryError
        if self.behaviour == "diverges":
            return model(batch).mean() * float("nan")
        return (model(batch) - 2 * batch).square().mean()

    def score(self, model, batch):
        return 0.5 * len(batch), 6, len(batch)
'''


@pytest.fixture
def coordinator() -> Iterator[ScriptedCoordinator]:
    with ScriptedCoordinator("alice", "bob") as coordinator:
        yield coordinator


@pytest.fixture
def own_task(tmp_path: Path) -> str:
    path = tmp_path / "own_task.py"
    path.write_text(OWN_TASK)
    return f"{path}:Line"


@pytest.fixture
def weights(tmp_path: Path) -> bytes:
    """Of the own task's model."""
    import torch

    path = tmp_path / "weights"
    save_tensors(path, {"weight": torch.tensor([[0.5]]), "bias": torch.tensor([0.25])})
    return path.read_bytes()


@pytest.fixture
def options(coordinator: ScriptedCoordinator, own_task: str, tmp_path: Path) -> WorkerOptions:
    return WorkerOptions(
        coordinator=coordinator.url,
        token=coordinator.token("alice"),
        task=own_task,
        cache_dir=tmp_path / "cache",
        display="log",
    )
