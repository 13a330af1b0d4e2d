"""The kernel that makes a run's first model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from services.core.errors import Rejected
from services.models.build import build
from services.models.weights import save_tensors
from services.tensors.errors import KernelFailed
from services.wire.v1.runs import ModelSpec


def init_model(params: Mapping[str, Any], inputs: Mapping[str, Path], out: Path) -> dict[str, float]:
    """Kernel. params: model (a ModelSpec as JSON), seed. Writes the state_dict to `out`; reads no inputs."""
    try:
        model = build(ModelSpec.model_validate(params["model"]), params["seed"])
    except Rejected as error:
        raise KernelFailed(error.detail) from error
    save_tensors(out, model.state_dict())
    return {"num_parameters": float(sum(parameter.numel() for parameter in model.parameters()))}
