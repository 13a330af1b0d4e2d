"""What a grant means: its kind of task has a handler, which the catalogue of methods names. Runs in a training thread;
imports torch at first use.

Data and built models stay in memory between rounds. A model that is used again carries nothing over: all of its
state_dict is overwritten and gradients are dropped, so equal grants give equal bytes.
"""

from __future__ import annotations

import hashlib
import os
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from services.core import digests
from services.core.errors import InvariantBroken
from services.core.figures import bounded
from services.methods.catalogue import CLIENT_WORK
from services.methods.references import resolve
from services.program.client import Handler, Signals, TaskInHand
from services.tensors.streams import StoredFile
from services.wire.v1.work import Device, TaskGrant
from worker.failures import WorkFailed
from worker.task_loading import TaskUnusable

if TYPE_CHECKING:
    import torch
    from torch import nn

    from services.training.task import ClientTask

MODELS_KEPT: Final = 2


@dataclass(frozen=True)
class Update:
    path: Path
    digest: str
    num_bytes: int


@dataclass(frozen=True)
class Result:
    update: Update | None
    num_samples: int
    metrics: dict[str, float]


@dataclass(frozen=True)
class GrantedTask:
    """A grant and the files that it needs. `on_progress` and `should_stop` are called between batches."""

    grant: TaskGrant
    weights: Path
    on_progress: Callable[[float], None]
    should_stop: Callable[[], bool]
    blobs: Mapping[str, Path] = field(default_factory=dict)
    """Files of the digests that the grant's `work` names."""

    def signals(self) -> Signals:
        return {"on_progress": self.on_progress, "should_stop": self.should_stop}


class TaskRunner:
    """One client's task, data and models. `load` and `execute` are for one thread at a time."""

    def __init__(self, load_task: Callable[[], ClientTask], device: str, scratch: Path) -> None:
        """`scratch`: where updates are written; whoever takes a Result removes its file."""
        self.scratch = scratch
        self._load_task = load_task
        self._device_name = device
        self._loaded: tuple[ClientTask, torch.device] | None = None
        self._models: OrderedDict[str, nn.Module] = OrderedDict()

    def load(self) -> list[Device]:
        """Import torch and read the data, before any work is claimed. Raises TaskUnusable."""
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # CUDA's condition for deterministic products
        import torch

        from services.training import devices

        torch.set_deterministic_debug_mode("warn")  # use_deterministic_algorithms would import the compiler: seconds
        try:
            device = devices.pick(self._device_name)
        except (ValueError, RuntimeError) as error:
            raise TaskUnusable(str(error)) from error
        self._loaded = (self._load_task(), device)
        return [devices.describe(device)]

    def work_for(self, task: ClientTask) -> None:
        """Another client's work comes next. Built models stay, since nothing of their state is carried over."""
        self._loaded = (task, self.device)

    def leave_out(self, samples: Collection[int]) -> list[int]:
        """No later batch holds these samples; returns those that the data does not have. Raises WorkFailed."""
        from services.training.task import LeavesOut

        task = self.task
        if not isinstance(task, LeavesOut):
            raise WorkFailed(f"the task {type(task).__name__} cannot leave samples out: give it leave_out(samples)")
        unknown = task.leave_out(frozenset(samples))
        if not self.task.num_train:
            raise WorkFailed("no sample to train on would be left; ask that the whole client be erased")
        return sorted(unknown)

    def execute(self, granted: GrantedTask) -> Result:
        """Raises WorkFailed, or whatever the client's own code raises; TrainingStopped when asked to stop."""
        import torch

        torch.set_num_threads(1)  # per thread in OpenMP builds, hence here and not once
        started = time.perf_counter()
        result = self._carry_out(granted)
        metrics = {**result.metrics, "seconds": time.perf_counter() - started}
        return Result(result.update, result.num_samples, bounded(metrics))

    @property
    def task(self) -> ClientTask:
        return self._ready()[0]

    @property
    def device(self) -> torch.device:
        return self._ready()[1]

    def model_with(self, granted: GrantedTask) -> nn.Module:
        """The grant's model, holding the grant's weights."""
        from services.training.local import load_weights

        key = digests.of_json(granted.grant.model.model_dump(mode="json"))
        model = self._models.pop(key, None)
        if model is None:
            model = self.task.model(granted.grant.model)
        self._models[key] = model
        while len(self._models) > MODELS_KEPT:
            self._models.popitem(last=False)
        model.zero_grad(set_to_none=True)
        load_weights(model, StoredFile(granted.weights))
        return model

    def _carry_out(self, granted: GrantedTask) -> Result:
        from services.training import local

        grant, work = granted.grant, CLIENT_WORK[granted.grant.kind]
        if work.parameters is not None and not isinstance(grant.work, work.parameters):
            raise WorkFailed(f"a task of kind {grant.kind} came without its parameters")
        handle: Handler[Any] = resolve(work.handler)
        model = self.model_with(granted)
        base = local.snapshot(model) if work.returns_update else {}
        hand = TaskInHand(
            task=self.task,
            model=model,
            spec=grant.model,
            parameters=grant.work,
            local=grant.local,
            seed=grant.seed,
            device=self.device,
            signals=granted.signals(),
            blobs=granted.blobs,
        )
        path = self.scratch / f"{uuid.uuid4().hex}.safetensors"
        try:
            figures = handle(hand)
            if work.returns_update:
                local.write_update(path, local.delta(base, model.state_dict()))
        except local.TrainingFailed as error:
            raise WorkFailed(str(error)) from error
        num_samples = int(figures.pop("num_samples", self.task.num_train))
        return Result(describe(path) if work.returns_update else None, num_samples, figures)

    def _ready(self) -> tuple[ClientTask, torch.device]:
        if self._loaded is None:
            raise InvariantBroken("work was given to a task runner that is not loaded")
        return self._loaded


def describe(path: Path) -> Update:
    """A written update, to be handed in."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Update(path, f"sha256:{digest}", path.stat().st_size)
