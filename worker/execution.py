"""What a grant means: the kind of task names its handler. Runs in a training thread; imports torch at first use.

Data and built models stay in memory between rounds. A model taken from the shelf carries nothing over: all of its
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
from typing import TYPE_CHECKING, Final, TypedDict

from services.audit.spec import Audit
from services.core import digests
from services.core.errors import InvariantBroken
from services.core.figures import bounded
from services.tensors.streams import StoredFile
from services.unlearning.fedforget.spec import Distil
from services.unlearning.pga.spec import Ascend
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


class Signals(TypedDict):
    on_progress: Callable[[float], None]
    should_stop: Callable[[], bool]


@dataclass(frozen=True)
class Order:
    """One grant on the workbench. `on_progress` and `should_stop` are called between batches."""

    grant: TaskGrant
    weights: Path
    on_progress: Callable[[float], None]
    should_stop: Callable[[], bool]
    blobs: Mapping[str, Path] = field(default_factory=dict)
    """Files of the digests that the grant's `work` names."""

    def signals(self) -> Signals:
        return {"on_progress": self.on_progress, "should_stop": self.should_stop}


class Workbench:
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

    def execute(self, order: Order) -> Result:
        """Raises WorkFailed, or whatever the client's own code raises; TrainingStopped when asked to stop."""
        import torch

        torch.set_num_threads(1)  # per thread in OpenMP builds, hence here and not once
        started = time.perf_counter()
        result = HANDLERS[order.grant.kind](self, order)
        metrics = {**result.metrics, "seconds": time.perf_counter() - started}
        return Result(result.update, result.num_samples, bounded(metrics))

    @property
    def task(self) -> ClientTask:
        return self._ready()[0]

    @property
    def device(self) -> torch.device:
        return self._ready()[1]

    def model_with(self, order: Order) -> nn.Module:
        """The grant's model, holding the grant's weights."""
        from services.training.local import load_weights

        key = digests.of_json(order.grant.model.model_dump(mode="json"))
        model = self._models.pop(key, None)
        if model is None:
            model = self.task.model(order.grant.model)
        self._models[key] = model
        while len(self._models) > MODELS_KEPT:
            self._models.popitem(last=False)
        model.zero_grad(set_to_none=True)
        load_weights(model, StoredFile(order.weights))
        return model

    def other_model(self, order: Order, digest: str) -> nn.Module:
        """A model of the same architecture with the weights of one of the order's other blobs."""
        from services.training.local import load_weights

        model = self.task.model(order.grant.model)
        load_weights(model, StoredFile(order.blobs[digest]))
        return model

    def _ready(self) -> tuple[ClientTask, torch.device]:
        if self._loaded is None:
            raise InvariantBroken("work was given to a workbench that is not loaded")
        return self._loaded


def _train(bench: Workbench, order: Order) -> Result:
    from services.training import local

    def train(model: nn.Module) -> dict[str, float]:
        grant = order.grant
        return local.train(bench.task, model, grant.local, grant.seed, bench.device, **order.signals())

    return _change(bench, order, train)


def _ascend(bench: Workbench, order: Order) -> Result:
    from services.unlearning.pga.client import ascend

    work = order.grant.work
    if not isinstance(work, Ascend):
        raise WorkFailed("an ascend task came without its parameters")
    seed = order.grant.seed
    return _change(bench, order, lambda model: ascend(bench.task, model, work, seed, bench.device, **order.signals()))


def _distil(bench: Workbench, order: Order) -> Result:
    from services.unlearning.fedforget.client import distil

    work = order.grant.work
    if not isinstance(work, Distil):
        raise WorkFailed("a distil task came without its parameters")
    teacher_a = bench.other_model(order, work.teacher_a)
    teacher_b = None if work.teacher_b is None else bench.other_model(order, work.teacher_b)

    def learn(model: nn.Module) -> dict[str, float]:
        seed = order.grant.seed
        return distil(bench.task, model, teacher_a, teacher_b, work, seed, bench.device, **order.signals())

    return _change(bench, order, learn)


def _change(bench: Workbench, order: Order, work: Callable[[nn.Module], dict[str, float]]) -> Result:
    """What `work` makes of the grant's model, as an update."""
    from services.training import local

    model = bench.model_with(order)
    base = local.snapshot(model)
    path = bench.scratch / f"{uuid.uuid4().hex}.safetensors"
    try:
        metrics = work(model)
        local.write_update(path, local.delta(base, model.state_dict()))
    except local.TrainingFailed as error:
        raise WorkFailed(str(error)) from error
    return Result(describe(path), bench.task.num_train, metrics)


def _audit(bench: Workbench, order: Order) -> Result:
    from services.audit.client import audit
    from services.training.local import TrainingFailed

    work, grant = order.grant.work, order.grant
    if not isinstance(work, Audit):
        raise WorkFailed("an audit task came without its parameters")
    before = None if work.before is None else bench.other_model(order, work.before)
    start = None if work.shadow_start is None else order.blobs[work.shadow_start]
    try:
        metrics = audit(
            bench.task,
            bench.model_with(order),
            work,
            grant.model,
            grant.seed,
            bench.device,
            before=before,
            shadow_start=start,
            should_stop=order.should_stop,
        )
    except TrainingFailed as error:
        raise WorkFailed(str(error)) from error
    return Result(None, bench.task.num_train, metrics)


def _evaluate(bench: Workbench, order: Order) -> Result:
    from services.training.evaluation import evaluate

    metrics = evaluate(bench.task, bench.model_with(order), bench.device)
    num_samples = int(metrics.pop("num_samples"))
    if num_samples == 0:
        raise WorkFailed("this client holds no data to evaluate on")
    return Result(None, num_samples, metrics)


HANDLERS: Final[dict[str, Callable[[Workbench, Order], Result]]] = {
    "train": _train,
    "evaluate": _evaluate,
    "ascend": _ascend,
    "distil": _distil,
    "audit": _audit,
}


def describe(path: Path) -> Update:
    """A written update, to be handed in."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Update(path, f"sha256:{digest}", path.stat().st_size)
