"""Building a model from its specification, with weights drawn from a generator of its own."""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch import nn

from services.core.errors import Rejected
from services.models import cnn, gpt2, lenet5, mlp, resnet, vgg16
from services.models.spec import CUSTOM, params_of
from services.wire.v1.runs import ModelSpec

MODELS: Final[dict[str, Any]] = {
    "mlp": mlp.build,
    "lenet5": lenet5.build,
    "cnn": cnn.build,
    "vgg16": vgg16.build,
    "resnet": resnet.build,
    "gpt2": gpt2.build,
    "gpt2_classifier": gpt2.build,
}
"""Builders, under the names of `spec.PARAMS`; each takes the params class of its name."""


def build(spec: ModelSpec, seed: int) -> nn.Module:
    """The model on the CPU; equal (spec, seed) give equal bits, and the global generator is not touched."""
    if spec.name == CUSTOM:
        raise Rejected("invalid-run", "Model custom is built by the worker's own task: start the worker with --task.")
    params = params_of(spec)
    with torch.device("meta"):  # allocate and draw nothing yet
        model: nn.Module = MODELS[spec.name](params)
    _allocate(model)
    initialise(model, torch.Generator().manual_seed(seed))
    return model


def _allocate(model: nn.Module) -> None:
    """What `to_empty` does, which takes a second to import a compiler first."""
    for module in model.modules():
        for name, param in module.named_parameters(recurse=False):
            empty = torch.empty(param.shape, dtype=param.dtype)
            setattr(module, name, nn.Parameter(empty, requires_grad=param.requires_grad))
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, torch.empty(buffer.shape, dtype=buffer.dtype))


def initialise(model: nn.Module, generator: torch.Generator) -> None:
    """torch's own default distributions (uniform within 1/sqrt(fan_in)), drawn in the order of the modules."""
    if isinstance(model, gpt2.Gpt2):
        model.initialise(generator)
        return
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            bound = 1 / math.sqrt(module.weight[0].numel())
            nn.init.uniform_(module.weight, -bound, bound, generator=generator)
            if module.bias is not None:
                nn.init.uniform_(module.bias, -bound, bound, generator=generator)
        elif isinstance(module, nn.GroupNorm):
            module.reset_parameters()
