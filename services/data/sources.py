"""Data sources named on the worker's command line: `SCHEME:PATH[?OPTIONS][#SHARD]`. The README has the grammar."""

from __future__ import annotations

import csv
import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from services.data.inputs import as_inputs
from services.data.partition import partition

Array = npt.NDArray[Any]
BUILTIN: Final = {"digits": Path(__file__).with_name("digits.npz")}
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


@dataclass(frozen=True)
class Shard:
    """Part `part` (from 0) of `num_parts` under a partition that every worker of an experiment computes alike."""

    part: int
    num_parts: int
    how: str = "iid"
    seed: int = 0


def load(source: str) -> Dataset:
    """The data set behind, for example, `npz:scans.npz`, `csv:patients.csv?label=outcome` or `digits#part=0/5`."""
    address, _, shard_text = source.partition("#")
    address, _, option_text = address.partition("?")
    options = dict(parse_qsl(option_text, keep_blank_values=True))
    scheme, separator, path = address.partition(":")
    if not separator and scheme in BUILTIN:
        scheme, path = "builtin", scheme
    if scheme not in _READERS:
        raise DataUnusable(
            f"unknown data source {source!r}; use npz:FILE, csv:FILE or builtin:NAME ({', '.join(BUILTIN)})"
        )
    data = _READERS[scheme](path, options)
    _check(data, source)
    if shard_text:
        data = _take_shard(data, parse_shard(shard_text))
    return replace(data, x_train=as_inputs(data.x_train), x_test=as_inputs(data.x_test))


def parse_shard(text: str) -> Shard:
    """`part=3/10,how=dirichlet:0.5,seed=0`: `part` is needed, `how` defaults to iid, `seed` to 0."""
    fields = dict(field.partition("=")[::2] for field in text.split(","))
    try:
        part, _, num_parts = fields.pop("part").partition("/")
        shard = Shard(int(part), int(num_parts), fields.pop("how", "iid"), int(fields.pop("seed", "0")))
    except (KeyError, ValueError):
        raise DataUnusable(f"bad shard {text!r}; write it like part=0/10,how=dirichlet:0.5,seed=0") from None
    if fields:
        raise DataUnusable(f"unknown shard settings {', '.join(fields)}; known are part, how and seed")
    if not 0 <= shard.part < shard.num_parts:
        raise DataUnusable(f"shard part={part}/{num_parts}: parts are numbered from 0 to {shard.num_parts - 1}")
    return shard


def _take_shard(data: Dataset, shard: Shard) -> Dataset:
    def rows(y: Array) -> Array:
        return partition(y, shard.num_parts, shard.how, shard.seed)[shard.part]

    try:
        train = rows(data.y_train)
        test = rows(data.y_test) if len(data.y_test) >= shard.num_parts else np.arange(len(data.y_test))
    except ValueError as error:
        raise DataUnusable(str(error)) from error
    return data.take(train, test)


def _read_npz(path_text: str, options: Mapping[str, str]) -> Dataset:
    _refuse_unknown(options, {"test"})
    path = _existing(path_text)
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            arrays = {key: file[key] for key in ("x_train", "y_train", "x_test", "y_test", "x", "y") if key in file}
            keys = ", ".join(file)
    except (ValueError, OSError, EOFError, TypeError, AttributeError, BadZipFile, zlib.error) as error:
        raise DataUnusable(f"{path} is not a plain .npz file ({error}); write it with numpy.savez") from error
    if {"x_train", "y_train"} <= arrays.keys():
        if len({"x_test", "y_test"} & arrays.keys()) == 1:
            raise DataUnusable(f"{path} has only one of x_test and y_test; give both or neither")
        x_test, y_test = arrays.get("x_test", arrays["x_train"][:0]), arrays.get("y_test", arrays["y_train"][:0])
        return Dataset(arrays["x_train"], _labels(arrays["y_train"], path), x_test, _labels(y_test, path))
    if {"x", "y"} <= arrays.keys():
        return _hold_out(arrays["x"], _labels(arrays["y"], path), options)
    raise DataUnusable(f"{path} has the keys {keys}; looked for x_train and y_train (and x_test, y_test), or x and y")


def _read_csv(path_text: str, options: Mapping[str, str]) -> Dataset:
    _refuse_unknown(options, {"label", "classes", "test"})
    path = _existing(path_text)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            names, *rows = [row for row in csv.reader(file) if row]
    except (ValueError, csv.Error) as error:
        raise DataUnusable(f"{path} needs a first line with column names and at least one row ({error})") from error
    label = options.get("label", "label" if "label" in names else names[-1])
    if label not in names or not rows:
        raise DataUnusable(f"{path}: no column {label!r} or no rows; the columns are {', '.join(names)}")
    column = names.index(label)
    if any(len(row) != len(names) for row in rows):
        raise DataUnusable(f"{path}: every row needs {len(names)} fields")
    try:
        x = np.array([[float(cell) for i, cell in enumerate(row) if i != column] for row in rows], dtype=np.float32)
        if "classes" in options:
            classes = options["classes"].split(",")
            y = np.array([classes.index(row[column]) for row in rows], dtype=np.int64)
        else:
            y = np.array([int(row[column]) for row in rows], dtype=np.int64)
    except ValueError as error:
        raise DataUnusable(
            f"{path}: {error}; features must be numbers and labels integers from 0, or named with ?classes=first,second"
        ) from error
    return _hold_out(x, y, options)


def _read_builtin(name: str, options: Mapping[str, str]) -> Dataset:
    _refuse_unknown(options, set())
    if name not in BUILTIN:
        raise DataUnusable(f"no built-in data set {name!r}; there is {', '.join(BUILTIN)}")
    return _read_npz(str(BUILTIN[name]), {})


_READERS: Final[dict[str, Callable[[str, Mapping[str, str]], Dataset]]] = {
    "npz": _read_npz,
    "csv": _read_csv,
    "builtin": _read_builtin,
}


def _hold_out(x: Array, y: Array, options: Mapping[str, str]) -> Dataset:
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


def _check(data: Dataset, source: str) -> None:
    for which, x, y in (("train", data.x_train, data.y_train), ("test", data.x_test, data.y_test)):
        if x.ndim < 2 or len(x) != len(y):
            raise DataUnusable(f"{source}: {which} has x {x.shape} and y {y.shape}; rows must match, x needs features")
        if x.dtype.kind not in "uifb":
            raise DataUnusable(f"{source}: x is {x.dtype}; numbers are needed")
        if x.dtype.kind == "f" and not np.isfinite(x).all():
            raise DataUnusable(f"{source}: x contains NaN or Inf; fill or drop those rows first")
        if len(y) and y.min() < 0:
            raise DataUnusable(f"{source}: labels must be integers from 0; the smallest is {y.min()}")
    if not len(data.y_train):
        raise DataUnusable(f"{source}: no training samples")
    if data.x_train.shape[1:] != data.x_test.shape[1:]:
        raise DataUnusable(f"{source}: train and test samples differ in shape")


def _labels(y: Array, path: Path) -> Array:
    if y.ndim != 1 or y.dtype.kind not in "ui":
        raise DataUnusable(f"{path}: labels are {y.dtype} {y.shape}; a one-dimensional array of integers is needed")
    return y.astype(np.int64)


def _existing(path_text: str) -> Path:
    path = Path(path_text).expanduser()
    if not path.is_file():
        raise DataUnusable(f"no file {path} (looked in {Path.cwd()}); check the path after the colon")
    return path


def _refuse_unknown(options: Mapping[str, str], known: set[str]) -> None:
    if unknown := sorted(set(options) - known):
        raise DataUnusable(f"unknown options {', '.join(unknown)}; known here: {', '.join(sorted(known)) or 'none'}")
