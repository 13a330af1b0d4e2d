"""A small network of ReLU layers and Adam (Kingma and Ba, ICLR 2015) in float64, without torch: a state that a kernel
reads, changes by a few steps and writes again has to be the same bytes each time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]
Layers = list[tuple[Doubles, Doubles]]
"""Weights [inputs, outputs] and biases of each layer."""

LEARNING_RATE: Final = 1e-3
_BETAS: Final = (0.9, 0.999)
_EPSILON: Final = 1e-8


def initial(sizes: Sequence[int], seed: int) -> Layers:
    """Uniform in ±1/√inputs, as torch draws linear layers."""
    rng = np.random.default_rng(seed)
    layers = []
    for num_inputs, num_outputs in pairwise(sizes):
        bound = 1.0 / np.sqrt(num_inputs)
        layers.append((rng.uniform(-bound, bound, (num_inputs, num_outputs)), rng.uniform(-bound, bound, num_outputs)))
    return layers


def sizes_of(layers: Layers) -> tuple[int, ...]:
    return (layers[0][0].shape[0], *(weights.shape[1] for weights, _ in layers))


def forward(layers: Layers, x_BI: Doubles) -> list[Doubles]:
    """What each layer is given, and the output last."""
    given = [x_BI]
    for number, (weights, bias) in enumerate(layers):
        out = given[-1] @ weights + bias
        given.append(out if number == len(layers) - 1 else np.maximum(out, 0.0))
    return given


def gradients(layers: Layers, given: list[Doubles], of_output_BO: Doubles) -> Layers:
    found: Layers = []
    back = of_output_BO
    for number in range(len(layers) - 1, -1, -1):
        weights, _ = layers[number]
        found.append((given[number].T @ back, back.sum(axis=0)))
        back = (back @ weights.T) * (given[number] > 0.0)
    return found[::-1]


@dataclass(frozen=True)
class Adam:
    """The two moments of the gradients so far."""

    first: Layers
    second: Layers
    num_steps: int = 0

    @classmethod
    def fresh(cls, layers: Layers) -> Adam:
        zeros = [(np.zeros_like(weights), np.zeros_like(bias)) for weights, bias in layers]
        return cls(zeros, zeros)

    def step(self, layers: Layers, gradient: Layers) -> tuple[Layers, Adam]:
        num_steps = self.num_steps + 1
        corrected = [1.0 - beta**num_steps for beta in _BETAS]
        new: Layers = []
        first: Layers = []
        second: Layers = []
        for old, slope, m, v in zip(layers, gradient, self.first, self.second, strict=True):
            pairs = []
            for place in (0, 1):
                m_now = _BETAS[0] * m[place] + (1.0 - _BETAS[0]) * slope[place]
                v_now = _BETAS[1] * v[place] + (1.0 - _BETAS[1]) * slope[place] ** 2
                moved = LEARNING_RATE * (m_now / corrected[0]) / (np.sqrt(v_now / corrected[1]) + _EPSILON)
                pairs.append((old[place] - moved, m_now, v_now))
            (w, m_w, v_w), (b, m_b, v_b) = pairs
            new.append((w, b))
            first.append((m_w, m_b))
            second.append((v_w, v_b))
        return new, Adam(first, second, num_steps)


def to_tensors(prefix: str, layers: Layers) -> dict[str, Doubles]:
    return {
        f"{prefix}.{number}.{what}": array
        for number, layer in enumerate(layers)
        for what, array in zip(("weights", "bias"), layer, strict=True)
    }


def from_tensors(prefix: str, tensors: Mapping[str, Doubles]) -> Layers:
    """No layers where there are none of this name."""
    layers: Layers = []
    while f"{prefix}.{len(layers)}.weights" in tensors:
        number = len(layers)
        layers.append((tensors[f"{prefix}.{number}.weights"], tensors[f"{prefix}.{number}.bias"]))
    return layers
