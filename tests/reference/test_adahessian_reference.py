"""AdaHessian against the formulas, written out slowly in float64 on functions whose Hessian is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from services.training.adahessian import BETA_1, BETA_2, EPSILON, AdaHessian
from services.training.local_spec import LocalTraining

SEED = 5
LOCAL = LocalTraining(optimizer="adahessian", learning_rate=0.05, weight_decay=0.1)


def quadratic(size: int, seed: int = 0) -> tuple[Any, Any, Any]:
    """A, b and a start for f(w) = w·Aw / 2 - b·w, whose gradient is Aw - b and whose Hessian is A."""
    numbers = np.random.default_rng(seed)
    root = numbers.normal(size=(size, size))
    return root @ root.T + np.eye(size), numbers.normal(size=size), numbers.normal(size=size)


def slowly(A: Any, b: Any, start: Any, shape: tuple[int, ...], num_steps: int) -> Any:
    signs = torch.Generator().manual_seed(SEED)
    w, m, v = start.copy(), np.zeros_like(start), np.zeros_like(start)
    for t in range(1, num_steps + 1):
        z = 2.0 * torch.randint(0, 2, shape, generator=signs).numpy().ravel() - 1.0
        gradient, diagonal = A @ w - b, z * (A @ z)
        if len(shape) == 4:
            for first in range(shape[0]):
                for second in range(shape[1]):
                    block = diagonal.reshape(shape)[first, second]
                    block[:] = block.sum() / block.size
        for i in range(len(w)):
            m[i] = BETA_1 * m[i] + (1 - BETA_1) * gradient[i]
            v[i] = BETA_2 * v[i] + (1 - BETA_2) * diagonal[i] ** 2
            m_hat, v_hat = m[i] / (1 - BETA_1**t), v[i] / (1 - BETA_2**t)
            w[i] -= LOCAL.learning_rate * (m_hat / (v_hat**0.5 + EPSILON) + LOCAL.weight_decay * w[i])
    return w


@pytest.mark.parametrize("shape", [(6,), (3, 4), (2, 3, 2, 2)], ids=["vector", "matrix", "convolution"])
def test_steps_are_those_of_the_formulas(shape: tuple[int, ...]) -> None:
    A, b, start = quadratic(int(np.prod(shape)))
    w = torch.tensor(start.reshape(shape), requires_grad=True)
    optimizer = AdaHessian(LOCAL, [w], SEED)
    for _ in range(20):
        flat = w.reshape(-1)
        optimizer.backward(flat @ torch.from_numpy(A) @ flat / 2 - torch.from_numpy(b) @ flat)
        optimizer.step()
        assert w.grad is None
    np.testing.assert_allclose(w.detach().numpy().ravel(), slowly(A, b, start, shape, 20), rtol=1e-9, atol=1e-12)


def test_a_badly_conditioned_valley_is_walked_as_fast_as_a_round_one() -> None:
    """On a diagonal Hessian one draw gives it exactly, so that all coordinates shrink alike."""
    curvatures = torch.tensor([1.0, 1e2, 1e4], dtype=torch.float64)
    w = torch.ones(3, dtype=torch.float64, requires_grad=True)
    optimizer = AdaHessian(LocalTraining(optimizer="adahessian", learning_rate=0.05), [w], SEED)
    for _ in range(60):
        optimizer.backward((curvatures * w * w).sum() / 2)
        optimizer.step()
    assert float(w.detach().abs().max()) < 0.2
    assert float(w.detach().max() - w.detach().min()) < 1e-3


def test_parameters_without_curvature_or_without_a_gradient_do_no_harm() -> None:
    straight, unused = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    optimizer = AdaHessian(LOCAL, [straight, unused], SEED)
    optimizer.backward(0 * straight.sum())
    optimizer.step()
    assert unused.tolist() == [1, 1]
    assert bool(torch.isfinite(straight).all())


def test_equal_seeds_draw_equal_signs() -> None:
    A, b, start = (torch.from_numpy(part) for part in quadratic(6))
    ends = []
    for seed in (1, 1, 2):
        w = start.clone().requires_grad_()
        optimizer = AdaHessian(LOCAL, [w], seed)
        for _ in range(3):
            optimizer.backward(w @ A @ w / 2 - b @ w)
            optimizer.step()
        ends.append(w.detach())
    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2])
