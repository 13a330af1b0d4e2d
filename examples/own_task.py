"""A task of one's own: the price of a flat from its size, age and floor, by a model that Lethe does not know.

A worker runs it with `--task own_task.py:Prices --data 0`; `lethe simulate own-simulation.yaml` runs the same file. The
text of `--data` is yours to read: a path, a query, or, as here, a number that invented records are drawn from.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import Tensor, nn

Batch = tuple[Tensor, Tensor]


class Prices:
    def __init__(self, data: str) -> None:
        self.x, self.y = read_records(data)
        self.leave_out(())

    def model(self, spec: Any) -> nn.Module:
        """`spec.params` are those of the run file."""
        width = spec.params.get("width", 16)
        return nn.Sequential(nn.Linear(self.x.shape[1], width), nn.ReLU(), nn.Linear(width, 1))

    def train_batches(self, batch_size: int, seed: int) -> Iterator[Batch]:
        order = torch.randperm(self.num_train, generator=torch.Generator().manual_seed(seed))
        for rows in self.train[order].split(batch_size):
            yield self.x[rows], self.y[rows]

    def eval_batches(self, batch_size: int) -> Iterator[Batch]:
        for rows in self.held_out.split(batch_size):
            yield self.x[rows], self.y[rows]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return nn.functional.mse_loss(model(batch[0]).squeeze(1), batch[1])

    def score(self, model: nn.Module, batch: Batch) -> tuple[float, int, int]:
        """A price counts as right when it is less than 0.1 off."""
        errors = (model(batch[0]).squeeze(1) - batch[1]).abs()
        return float(errors.square().sum()), int((errors < 0.1).sum()), len(errors)

    def leave_out(self, samples: Collection[int]) -> Collection[int]:
        """Optional: lets single samples be erased. The last fifth of the records is held out."""
        rows = torch.tensor([row for row in range(len(self.y)) if row not in samples], dtype=torch.long)
        first_held_out = len(self.y) - len(self.y) // 5
        self.train, self.held_out = rows[rows < first_held_out], rows[rows >= first_held_out]
        self.num_train, self.num_eval = len(self.train), len(self.held_out)
        return [row for row in samples if row >= len(self.y)]


def read_records(data: str) -> Batch:
    """100 flats: size, age and floor, each from 0 to 1, and a price. Read your own records here."""
    generator = torch.Generator().manual_seed(int(data))
    x = torch.rand(100, 3, generator=generator)
    y = x @ torch.tensor([0.8, -0.3, 0.1]) + 0.02 * torch.randn(100, generator=generator)
    return x, y
