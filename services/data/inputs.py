"""From stored arrays to what a model sees. Clients and the coordinator's validation share this one function."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def as_inputs(x: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Float32 inputs, one sample per row of the first axis.

    Three or four axes of uint8 are images: scaled from 0..255 to 0..1. (N, H, W) gets a channel axis, (N, H, W, C)
    with 1, 3 or 4 channels is turned to (N, C, H, W). Everything else, tables in particular, is taken as it is.
    """
    is_image = x.dtype == np.uint8 and x.ndim in (3, 4)
    if x.ndim == 3:
        x = x[:, np.newaxis]
    elif x.ndim == 4 and x.shape[3] in (1, 3, 4) and x.shape[1] not in (1, 3, 4):
        x = x.transpose(0, 3, 1, 2)
    inputs = np.ascontiguousarray(x, dtype=np.float32)
    return inputs / np.float32(255) if is_image else inputs
