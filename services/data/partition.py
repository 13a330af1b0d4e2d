"""Dividing one data set among simulated clients. Real data holders have no use for this."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from services.core.seeds import derive

Indices = npt.NDArray[np.int64]


def partition(y: npt.NDArray[Any], num_parts: int, how: str = "iid", seed: int = 0) -> list[Indices]:
    """Disjoint, sorted index arrays that cover `range(len(y))`; none is empty.

    how: `iid` — shuffled, equal sizes; `dirichlet:ALPHA` — per class, shares drawn from Dirichlet(ALPHA), so a small
    ALPHA means lopsided clients; `by-class[:RATIO]` — client i gets RATIO (default 0.8) of class i modulo the number
    of classes, the rest of each class is spread over the other clients.

    Two label arrays over the same classes (train and test) are divided in like proportions under the same seed.
    """
    if not 1 <= num_parts <= len(y):
        raise ValueError(f"cannot divide {len(y)} samples into {num_parts} parts that are not empty")
    kind, _, argument = how.partition(":")
    if kind == "iid" and not argument:
        shuffled = _generator(seed, "shuffle").permutation(len(y))
        parts = [list(part) for part in np.array_split(shuffled, num_parts)]
    elif kind == "dirichlet":
        parts = _by_shares(y, _dirichlet_shares(y, num_parts, _positive(argument, how), seed), seed)
    elif kind == "by-class":
        ratio = _positive(argument or "0.8", how)
        if ratio > 1:
            raise ValueError(f"{how}: the ratio must be at most 1")
        parts = _by_shares(y, _class_shares(y, num_parts, ratio), seed)
    else:
        raise ValueError(f"unknown way to divide {how!r}; known are iid, dirichlet:ALPHA and by-class[:RATIO]")
    _fill_empty(parts)
    return [np.sort(np.asarray(part, dtype=np.int64)) for part in parts]


def _generator(seed: int, *names: str | int) -> np.random.Generator:
    return np.random.default_rng(derive(seed, "partition", *names))


def _positive(text: str, how: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{how!r} needs a number after the colon, as in dirichlet:0.5") from None
    if not 0 < value < float("inf"):
        raise ValueError(f"{how!r} needs a positive number after the colon")
    return value


def _num_classes(y: npt.NDArray[Any]) -> int:
    return int(y.max()) + 1


def _dirichlet_shares(y: npt.NDArray[Any], num_parts: int, alpha: float, seed: int) -> list[npt.NDArray[np.float64]]:
    concentration = np.full(num_parts, alpha)
    return [_generator(seed, "shares", label).dirichlet(concentration) for label in range(_num_classes(y))]


def _class_shares(y: npt.NDArray[Any], num_parts: int, ratio: float) -> list[npt.NDArray[np.float64]]:
    num_classes = _num_classes(y)
    shares = []
    for label in range(num_classes):
        owners = [part for part in range(num_parts) if part % num_classes == label] or [label % num_parts]
        others = num_parts - len(owners)
        share = np.full(num_parts, (1 - ratio) / others if others else 0.0)
        share[owners] = (ratio if others else 1.0) / len(owners)
        shares.append(share)
    return shares


def _by_shares(y: npt.NDArray[Any], shares: Sequence[npt.NDArray[np.float64]], seed: int) -> list[list[int]]:
    parts: list[list[int]] = [[] for _ in range(len(shares[0]))]
    for label, share in enumerate(shares):
        rows = _generator(seed, "rows", label).permutation(np.flatnonzero(y == label))
        cuts = np.rint(np.cumsum(share)[:-1] * len(rows)).astype(np.int64)
        for part, taken in zip(parts, np.split(rows, cuts), strict=True):
            part.extend(taken)
    return parts


def _fill_empty(parts: list[list[int]]) -> None:
    for part in parts:
        if not part:
            part.append(max(parts, key=len).pop())
