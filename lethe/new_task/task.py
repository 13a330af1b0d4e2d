"""The model and the data of this task, in one file: `lethe simulate` and every worker run it.

Change `read_records` to read your own, `model` to be yours, and `loss` and `score` to fit. Here the price of a flat is
learnt from its size, age and floor, on records that are drawn by chance.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import Tensor, nn

Batch = tuple[Tensor, Tensor]


def read_records(data: str) -> Batch:
    """Inputs and targets of one client. `data` is the text of its `--data`: a path, a query, or here a number."""
    generator = torch.Generator().manual_seed(int(data))
    x = torch.rand(200, 3, generator=generator)
    y = x @ torch.tensor([0.8, -0.3, 0.1]) + 0.02 * torch.randn(200, generator=generator)
    return x, y


class Task:
    def __init__(self, data: str) -> None:
        self.x, self.y = read_records(data)
        self.leave_out(())

    def model(self, spec: Any) -> nn.Module:
        """`spec.params` are those of run.yaml."""
        width = spec.params.get("width", 16)
        return nn.Sequential(nn.Linear(self.x.shape[1], width), nn.ReLU(), nn.Linear(width, 1))

    def train_batches(self, batch_size: int, seed: int) -> Iterator[Batch]:
        """One epoch, in an order that depends on the seed only."""
        order = torch.randperm(self.num_train, generator=torch.Generator().manual_seed(seed))
        yield from self._batches(self.train[order], batch_size)

    def eval_batches(self, batch_size: int) -> Iterator[Batch]:
        """What is held out, always in the same order."""
        yield from self._batches(self.held_out, batch_size)

    def _batches(self, rows: Tensor, batch_size: int) -> Iterator[Batch]:
        for start in range(0, len(rows), batch_size):
            some = rows[start : start + batch_size]
            yield self.x[some], self.y[some]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return nn.functional.mse_loss(model(batch[0]).squeeze(1), batch[1])

    def score(self, model: nn.Module, batch: Batch) -> tuple[float, int, int]:
        """(sum of losses, number correct, number of samples): a price that is less than 0.1 off counts as right."""
        errors = (model(batch[0]).squeeze(1) - batch[1]).abs()
        return float(errors.square().sum()), int((errors < 0.1).sum()), len(errors)

    def leave_out(self, samples: Collection[int]) -> Collection[int]:
        """Lets single samples be erased. The last fifth of the records is held out."""
        rows = torch.tensor([row for row in range(len(self.y)) if row not in samples], dtype=torch.long)
        first_held_out = len(self.y) - len(self.y) // 5
        self.train, self.held_out = rows[rows < first_held_out], rows[rows >= first_held_out]
        self.num_train, self.num_eval = len(self.train), len(self.held_out)
        return [row for row in samples if row >= len(self.y)]
