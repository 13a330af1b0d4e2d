"""AdaHessian (Yao et al., AAAI 2021): Adam whose second moment is that of the Hessian's diagonal.

z is a Rademacher vector (entries -1 or 1), drawn anew at every step; D = z * (H z) has the diagonal of H as its mean.
For convolutions D is averaged over the kernel's positions. Then, with g the gradient and t the step:
m = β1 m + (1 - β1) g,  v = β2 v + (1 - β2) D²,  w -= lr (m / (1 - β1^t) / (sqrt(v / (1 - β2^t)) + ε) + decay w)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from services.training.local_spec import LocalTraining

BETA_1: Final = 0.9
BETA_2: Final = 0.999
EPSILON: Final = 1e-4
"""Bounds the step where a parameter has a gradient and, by one draw, hardly any curvature: with 1e-8 a small network
on digits diverged within ten epochs."""


class AdaHessian:
    """Gradients come from `autograd.grad`: `backward(create_graph=True)` would tie parameters and graph into cycles
    that hold the memory of every step."""

    def __init__(self, local: LocalTraining, params: Sequence[Tensor], seed: int) -> None:
        self._learning_rate, self._weight_decay = local.learning_rate, local.weight_decay
        self._params = list(params)
        self._numbers = torch.Generator().manual_seed(seed)
        self._diagonals: dict[Tensor, Tensor] = {}
        self._moments = {param: (torch.zeros_like(param), torch.zeros_like(param)) for param in params}
        self._num_steps = dict.fromkeys(params, 0)

    def backward(self, loss: Tensor) -> None:
        found: Sequence[Tensor | None] = torch.autograd.grad(loss, self._params, create_graph=True, allow_unused=True)
        used = [(param, grad) for param, grad in zip(self._params, found, strict=True) if grad is not None]
        signs = [self._draw(param) for param, _ in used]
        curved = [(grad, sign) for (_, grad), sign in zip(used, signs, strict=True) if grad.requires_grad]
        products: Sequence[Tensor | None] = [None] * len(used)
        if curved:
            outputs, directions = zip(*curved, strict=True)
            products = torch.autograd.grad(
                outputs, [param for param, _ in used], grad_outputs=directions, allow_unused=True
            )
        for (param, grad), sign, product in zip(used, signs, products, strict=True):
            param.grad = grad.detach()
            self._diagonals[param] = _averaged(sign * product) if product is not None else torch.zeros_like(param)

    @torch.no_grad()
    def step(self) -> None:
        for param in self._params:
            if param.grad is None:
                continue
            self._num_steps[param] += 1
            t, (first, second) = self._num_steps[param], self._moments[param]
            diagonal = self._diagonals.pop(param)
            first.mul_(BETA_1).add_(param.grad, alpha=1 - BETA_1)
            second.mul_(BETA_2).addcmul_(diagonal, diagonal, value=1 - BETA_2)
            scale = (second / (1 - BETA_2**t)).sqrt_().add_(EPSILON)
            param.mul_(1 - self._learning_rate * self._weight_decay)
            param.addcdiv_(first / (1 - BETA_1**t), scale, value=-self._learning_rate)
            param.grad = None

    def _draw(self, param: Tensor) -> Tensor:
        """Signs drawn on the CPU, so that every device sees the same ones."""
        bits = torch.randint(0, 2, param.shape, generator=self._numbers)
        return (2 * bits - 1).to(param)


def _averaged(diagonal: Tensor) -> Tensor:
    """Over the positions of a convolution's kernel: all axes but the first two."""
    if diagonal.ndim <= 2:
        return diagonal
    return diagonal.mean(dim=tuple(range(2, diagonal.ndim)), keepdim=True).expand_as(diagonal)
