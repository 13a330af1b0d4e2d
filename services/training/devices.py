"""Where the local loop runs. Everything that only CUDA needs is here: autocast, pinned prefetch, its generators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from services.wire.v1.work import Device


def pick(name: str = "auto") -> torch.device:
    """`auto`: CUDA when present, else the CPU; or `cpu`, `cuda`, `cuda:1`."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device {name!r} is not supported; use auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {name!r} was asked for but torch sees no CUDA device; use --device cpu")
    return device


def describe(device: torch.device) -> Device:
    """What a session reports about this device."""
    if device.type == "cpu":
        return Device(kind="cpu")
    properties = torch.cuda.get_device_properties(device)
    return Device(kind="cuda", name=properties.name, memory_mb=properties.total_memory // 2**20)


def autocast(device: torch.device) -> AbstractContextManager[Any]:
    """bfloat16 on CUDA, which needs no loss scaling; full precision on the CPU."""
    return torch.autocast("cuda", dtype=torch.bfloat16) if device.type == "cuda" else nullcontext()


def stream(batches: Iterable[Any], device: torch.device) -> Iterator[Any]:
    """The batches on `device`. On CUDA the next one is copied from pinned memory while the current one is used."""
    if device.type == "cpu":
        yield from batches
        return
    ready: list[Any] = []
    for batch in batches:
        ready.append(_move(batch, device))
        if len(ready) > 1:
            yield ready.pop(0)
    yield from ready


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Layers such as dropout draw from torch's global generators: seed them here, put them back afterwards."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


def _move(batch: Any, device: torch.device) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch.pin_memory().to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {key: _move(part, device) for key, part in batch.items()}
    return tuple(_move(part, device) for part in batch)
