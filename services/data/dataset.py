"""What every data source becomes: arrays for training and testing whose samples keep their row numbers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
DEFAULT_TEST_SHARE: Final = 0.2


class DataUnusable(ValueError):
    """The source cannot be read as a data set; the message says what was looked for and what to do."""


@dataclass(frozen=True)
class Dataset:
    """x: float32, first axis = samples; y: int64 classes from 0. The test arrays may be empty.

    The row numbers say which sample of the source each one is; without any, training samples come first.
    """

    x_train: Array
    y_train: Array
    x_test: Array
    y_test: Array
    rows_train: Array = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    rows_test: Array = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    def __post_init__(self) -> None:
        if not len(self.rows_train) and not len(self.rows_test):
            num_train = len(self.y_train)
            object.__setattr__(self, "rows_train", np.arange(num_train))
            object.__setattr__(self, "rows_test", num_train + np.arange(len(self.y_test)))

    def take(self, train: Array, test: Array) -> Dataset:
        """The samples at these positions, or for which these masks are true."""
        return Dataset(
            self.x_train[train],
            self.y_train[train],
            self.x_test[test],
            self.y_test[test],
            self.rows_train[train],
            self.rows_test[test],
        )

    def without(self, rows: Collection[int]) -> Dataset:
        """The same, in the same order, without the samples of these row numbers."""
        gone = np.array(sorted(rows), dtype=np.int64)
        return self.take(~np.isin(self.rows_train, gone), ~np.isin(self.rows_test, gone))

    def unknown(self, rows: Collection[int]) -> list[int]:
        """Which of these row numbers it has no sample of."""
        return sorted(set(rows) - set(self.rows_train.tolist()) - set(self.rows_test.tolist()))


def hold_out(x: Array, y: Array, options: Mapping[str, str]) -> Dataset:
    """The same rows are held out every time the file is read."""
    try:
        share = float(options.get("test", DEFAULT_TEST_SHARE))
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise DataUnusable(f"test={options['test']}: give the share of rows to hold out, from 0 to below 1")
    if len(x) != len(y):
        raise DataUnusable(f"x has {len(x)} rows but y has {len(y)}")
    order = np.random.default_rng(0).permutation(len(y))
    num_test = int(share * len(y))
    test, train = np.sort(order[:num_test]), np.sort(order[num_test:])
    return Dataset(x[train], y[train], x[test], y[test], train, test)


def labels_of(y: Array, path: Path) -> Array:
    if y.ndim != 1 or y.dtype.kind not in "ui":
        raise DataUnusable(f"{path}: labels are {y.dtype} {y.shape}; a one-dimensional array of integers is needed")
    return y.astype(np.int64)


def refuse_unknown(options: Mapping[str, str], known: set[str]) -> None:
    if unknown := sorted(set(options) - known):
        raise DataUnusable(f"unknown options {', '.join(unknown)}; known here: {', '.join(sorted(known)) or 'none'}")
