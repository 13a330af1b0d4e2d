"""The kernel that makes a run's first model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from services.core.errors import Rejected
from services.models.build import build
from services.models.weights import write_tensors
from services.tensors.errors import KernelFailed
from services.tensors.streams import Stored, Writable
from services.wire.v1.runs import ModelSpec


def init_model(params: Mapping[str, Any], inputs: Mapping[str, Stored], out: Writable) -> dict[str, float]:
    """Kernel. params: model (a ModelSpec as JSON), seed. Writes the state_dict to `out`; reads no inputs."""
    try:
        model = build(ModelSpec.model_validate(params["model"]), params["seed"])
    except Rejected as error:
        raise KernelFailed(error.detail) from error
    write_tensors(out, model.state_dict())
    return {"num_parameters": float(sum(parameter.numel() for parameter in model.parameters()))}
