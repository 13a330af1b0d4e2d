"""SGD and AdamW over torch's functional forms, because the classes in torch.optim load the compiler: seconds of start.

The tests hold them to the bits of torch.optim. `momentum` belongs to SGD; AdamW has its usual betas.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from services.training.adahessian import AdaHessian
from services.training.local_spec import LocalTraining


class Optimizer(Protocol):
    def backward(self, loss: Tensor) -> None:
        """Leave the loss's gradient with every parameter, and whatever else `step` needs."""
        ...

    def step(self) -> None:
        """Move every parameter along its gradient, then drop the gradients."""
        ...


def make(local: LocalTraining, params: Sequence[Tensor], seed: int) -> Optimizer:
    """`seed`: for optimisers that draw."""
    match local.optimizer:
        case "sgd":
            return Sgd(local, params)
        case "adamw":
            return AdamW(local, params)
        case "adahessian":
            return AdaHessian(local, params, seed)


class _FirstOrder:
    def backward(self, loss: Tensor) -> None:
        torch.autograd.backward(loss)


class Sgd(_FirstOrder):
    def __init__(self, local: LocalTraining, params: Sequence[Tensor]) -> None:
        self._local = local
        self._params = list(params)
        self._momentum: dict[Tensor, Tensor | None] = {}

    @torch.no_grad()
    def step(self) -> None:
        params, grads = _with_gradients(self._params)
        buffers = [self._momentum.get(param) for param in params]
        sgd(
            params,
            grads,
            buffers,
            foreach=True,
            lr=self._local.learning_rate,
            momentum=self._local.momentum,
            weight_decay=self._local.weight_decay,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )
        if self._local.momentum:
            self._momentum = dict(zip(params, buffers, strict=True))


class AdamW(_FirstOrder):
    def __init__(self, local: LocalTraining, params: Sequence[Tensor]) -> None:
        self._local = local
        self._params = list(params)
        self._state = {param: (torch.zeros_like(param), torch.zeros_like(param), torch.tensor(0.0)) for param in params}

    @torch.no_grad()
    def step(self) -> None:
        params, grads = _with_gradients(self._params)
        state = [self._state[param] for param in params]
        adamw(
            params,
            grads,
            [first for first, _, _ in state],
            [second for _, second, _ in state],
            [],
            [count for _, _, count in state],
            foreach=True,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=self._local.learning_rate,
            weight_decay=self._local.weight_decay,
            eps=1e-8,
            maximize=False,
        )


def _with_gradients(params: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Parameters that took part in the loss, and their gradients, which are cleared."""
    used = [(param, param.grad) for param in params if param.grad is not None]
    for param, _ in used:
        param.grad = None
    return [param for param, _ in used], [grad for _, grad in used]
