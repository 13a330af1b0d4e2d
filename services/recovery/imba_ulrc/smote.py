"""SMOTE and density, on points: what is interpolated between neighbours, and which points lie apart from theirs.

Shapes: N points, D their coordinates, K neighbours.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

JITTER: Final = 0.1
"""How far copies of a single point are spread, relative to the spread of all points."""
_ROWS: Final = 1024
"""Distances are taken for so many points at a time."""


def nearest(points_ND: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """(distances [N, K], places [N, K]) of each point's nearest others, the nearest first; K = min(k, N − 1)."""
    num = len(points_ND)
    k = min(k, num - 1)
    distances, places = [], []
    for first in range(0, num, _ROWS):
        rows = points_ND[first : first + _ROWS]
        all_distances = torch.cdist(rows.double(), points_ND.double())
        own = torch.arange(first, first + len(rows))
        all_distances[torch.arange(len(rows)), own] = torch.inf
        found = all_distances.topk(k, largest=False)
        distances.append(found.values)
        places.append(found.indices)
    return torch.cat(distances), torch.cat(places)


def interpolate(points_ND: Tensor, count: int, k: int, spread_D: Tensor, generator: torch.Generator) -> tuple[
    Tensor, Tensor
]:  # fmt: skip
    """(new points [count, D], the place of the point that each begins at): base + u·(neighbour − base), u in [0, 1),
    eq. (4). Of a single point: copies that differ by a little of the `spread` of all points."""
    bases = torch.randint(len(points_ND), (count,), generator=generator)
    if len(points_ND) == 1:
        noise = torch.randn(count, points_ND.shape[1], generator=generator)
        return points_ND[bases] + JITTER * spread_D * noise, bases
    _, places = nearest(points_ND, k)
    chosen = places[bases, torch.randint(places.shape[1], (count,), generator=generator)]
    share = torch.rand(count, 1, generator=generator)
    return points_ND[bases] + share * (points_ND[chosen] - points_ND[bases]), bases


def density(distances_NK: Tensor) -> Tensor:
    """φ = (1 + Σ_q distance to neighbour q / (K + 1))^-1, eq. (5)."""
    return 1 / (1 + distances_NK.sum(dim=1) / (distances_NK.shape[1] + 1))


def density_factors(points_ND: Tensor, k: int) -> Tensor:
    """Mean density of each point's neighbours over its own, eq. (6): large where a point lies apart."""
    distances, places = nearest(points_ND, k)
    own = density(distances)
    return own[places].mean(dim=1) / own
