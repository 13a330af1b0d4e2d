"""One tiny training on this machine's device, and what it showed: whether the same seed gives the same bits, which
precision is used, how many samples a second. What was not tried is said to be not tried."""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

from services.core import digests
from services.training.local_spec import LocalTraining
from services.wire.v1.runs import ModelSpec
from worker.task_loading import TaskUnusable, load_task

if TYPE_CHECKING:
    import torch

    from services.training.task import ClientTask

DATA: Final = "builtin:digits"
MODEL: Final = ModelSpec(name="cnn", params={"input_shape": [8, 8], "num_classes": 10})
LOCAL: Final = LocalTraining(epochs=1, batch_size=32, learning_rate=0.1)
SEED: Final = 1


@dataclass(frozen=True)
class Finding:
    name: str
    ok: bool | None
    """None: not tried here."""
    detail: str


@dataclass(frozen=True)
class Checked:
    device: str
    findings: list[Finding]

    @property
    def passed(self) -> bool:
        return all(one.ok is not False for one in self.findings)


@dataclass(frozen=True)
class _Trained:
    digest: str
    loss: float
    seconds: float
    num_samples: int


def check(device_name: str) -> Checked:
    """Raises TaskUnusable when there is no such device."""
    import torch

    from services.training import devices

    torch.set_deterministic_debug_mode("warn")
    try:
        device = devices.pick(device_name)
    except (ValueError, RuntimeError) as error:
        raise TaskUnusable(str(error)) from error
    task = load_task("builtin:image-classifier", DATA)
    first, second = _train(task, device), _train(task, device)
    is_same = first.digest == second.digest
    rate = second.num_samples / second.seconds
    findings = [
        Finding("versions", True, f"Python {platform.python_version()}, torch {torch.__version__}"),
        Finding("system", True, platform.platform()),
        Finding("device", True, _described(device)),
        Finding("training", isfinite(first.loss), f"one epoch of {first.num_samples} digits, loss {first.loss:.4f}"),
        Finding(
            "determinism",
            is_same,
            "two trainings with one seed gave the same bytes" if is_same else "two trainings with one seed differ",
        ),
        Finding("throughput", True, f"{rate:.0f} samples/s ({second.seconds:.2f} s the second time)"),
        *_cuda_findings(task, device, first.loss),
    ]
    return Checked(str(device), findings)


def _train(task: ClientTask, device: torch.device) -> _Trained:
    from services.models.build import build
    from services.training.local import train

    model = build(MODEL, SEED)
    started = time.perf_counter()
    figures = train(task, model, LOCAL, SEED, device)
    seconds = time.perf_counter() - started
    content = b"".join(tensor.detach().cpu().contiguous().numpy().tobytes() for tensor in model.state_dict().values())
    return _Trained(digests.of_bytes(content), figures["loss"], seconds, task.num_train)


def _described(device: torch.device) -> str:
    import torch

    if device.type == "cpu":
        return f"cpu, {torch.get_num_threads()} threads"
    properties = torch.cuda.get_device_properties(device)
    return f"{device}, {properties.name}, {properties.total_memory >> 20} MB, CUDA {_cuda_version()}"


def _cuda_findings(task: ClientTask, device: torch.device, loss: float) -> list[Finding]:
    """What only a GPU shows. On the CPU nothing of it is claimed."""
    import torch

    if device.type == "cpu":
        present = "a CUDA device is present and was not used" if torch.cuda.is_available() else "no CUDA device here"
        return [
            Finding("CUDA", None, f"not tried: {present}"),
            Finding("mixed precision", None, "not tried: the CPU trains in full precision"),
        ]
    on_cpu = _train(task, torch.device("cpu")).loss
    difference = abs(loss - on_cpu) / max(abs(on_cpu), 1e-9)
    return [
        Finding("CUDA", True, f"trained on {torch.cuda.get_device_name(device)}"),
        Finding(
            "mixed precision",
            difference < 0.1,
            f"bfloat16 autocast; the loss is {difference:.1%} off the CPU's in full precision ({on_cpu:.4f})",
        ),
    ]


def _cuda_version() -> Any:
    import torch

    return torch.version.cuda
