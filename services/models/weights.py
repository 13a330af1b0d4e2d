"""Between a torch model and safetensors files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import nn

from services.core.errors import Rejected
from services.tensors import codec
from services.tensors.codec import BF16, Array
from services.tensors.layout import TensorInfo
from services.tensors.streams import FileWriter, Stored, Writable

DTYPES: Final = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.uint16: "U16", torch.int16: "I16",
    torch.float16: "F16", torch.bfloat16: "BF16", torch.uint32: "U32", torch.int32: "I32", torch.float32: "F32",
    torch.uint64: "U64", torch.int64: "I64", torch.float64: "F64",
}  # fmt: skip


def load_weights(model: nn.Module, stored: Stored) -> None:
    """Copy every tensor of the file into the model, one at a time. Names, shapes and dtypes must agree."""
    state = model.state_dict()
    expected = {TensorInfo(name, DTYPES[tensor.dtype], tuple(tensor.shape)) for name, tensor in state.items()}
    found = set(codec.layout_of(stored).tensors)
    if expected != found:
        differing = ", ".join(sorted({info.name for info in expected ^ found})[:5])
        raise Rejected("wrong-layout", f"The weights do not fit the model: they differ in {differing}.")
    with torch.no_grad():
        for name, array in codec.iterate(stored):
            state[name].copy_(to_tensor(array))


def save_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    with FileWriter(path) as out:
        write_tensors(out, tensors)


def write_tensors(out: Writable, tensors: Mapping[str, torch.Tensor]) -> None:
    """Deterministic: equal tensors give equal bytes."""
    codec.write(out, {name: to_array(tensor) for name, tensor in tensors.items()})


def to_array(tensor: torch.Tensor) -> Array:
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.reshape(-1).view(torch.int16).numpy().view(BF16).reshape(tensor.shape)
    array: Array = tensor.numpy()
    return array


def to_tensor(array: Array) -> torch.Tensor:
    if array.dtype == BF16:
        return torch.from_numpy(array.reshape(-1).view(np.int16)).view(torch.bfloat16).reshape(array.shape)
    return torch.from_numpy(array)
