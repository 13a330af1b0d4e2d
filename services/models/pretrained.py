"""Weights that others trained, from a safetensors file on this machine, as transformers writes it for GPT-2."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from services.core.errors import Rejected
from services.models.weights import to_tensor
from services.tensors import codec
from services.tensors.streams import StoredFile

PREFIX: Final = "transformer."
IGNORED: Final = ("lm_head.weight", ".attn.bias", ".attn.masked_bias")
"""The head is tied to the embedding; old files also hold masks."""
BASE_LAYER: Final = ".base_layer"
"""What peft puts into the name of a tensor that LoRA stands beside."""


def load_pretrained(model: nn.Module, path: Path) -> None:
    """Copy the file's tensors over those of the model's `transformer`. Every one of them must be there and fit; the
    classifier's head and adapters stay as they are."""
    params = {name.replace(BASE_LAYER, ""): param for name, param in model.named_parameters() if _is_pretrained(name)}
    found: dict[str, Tensor] = {}
    for name, array in codec.iterate(StoredFile(path)):
        if not name.endswith(IGNORED):
            found[name if name.startswith(PREFIX) else PREFIX + name] = to_tensor(array)
    wrong = [name for name, param in params.items() if name not in found or found[name].shape != param.shape]
    if wrong:
        missing = ", ".join(f"{name} {list(params[name].shape)}" for name in sorted(wrong)[:5])
        raise Rejected("wrong-layout", f"The pretrained weights in {path.name} do not fit: the model needs {missing}.")
    with torch.no_grad():
        for name, param in params.items():
            param.copy_(found[name])


def _is_pretrained(name: str) -> bool:
    return name.startswith(PREFIX) and "lora_" not in name
