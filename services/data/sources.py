"""Data sources named on the worker's command line: `SCHEME:PATH[?OPTIONS][#SHARD]`. The README has the grammar."""

from __future__ import annotations

import csv
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl
from zipfile import BadZipFile

import numpy as np

from services.data.data_folders import NAMED, find
from services.data.dataset import Array, Dataset, DataUnusable, hold_out, labels_of, refuse_unknown
from services.data.inputs import as_inputs
from services.data.partition import partition
from services.data.text import read_text, read_tsv

__all__ = ["Array", "DataUnusable", "Dataset", "load"]

BUILTIN: Final = {"digits": Path(__file__).with_name("digits.npz")}


@dataclass(frozen=True)
class Shard:
    """Part `part` (from 0) of `num_parts` under a partition that every worker of an experiment computes alike."""

    part: int
    num_parts: int
    how: str = "iid"
    seed: int = 0


def load(source: str, folders: Sequence[Path] = ()) -> Dataset:
    """The data set behind, for example, `npz:scans.npz`, `csv:patients.csv?label=outcome` or `digits#part=0/5`.

    `folders`: where files are looked for, after the working directory.
    """
    address, _, shard_text = source.partition("#")
    address, _, option_text = address.partition("?")
    options = dict(parse_qsl(option_text, keep_blank_values=True))
    scheme, separator, path = address.partition(":")
    if not separator and scheme in BUILTIN:
        scheme, path = "builtin", scheme
    elif not separator and scheme in NAMED:
        scheme, path = "npz", NAMED[scheme]
    if scheme not in (*_READERS, "builtin"):
        raise DataUnusable(
            f"unknown data source {source!r}; use {', '.join(f'{one}:FILE' for one in _READERS)},"
            f" or a name: {', '.join((*BUILTIN, *NAMED))}"
        )
    data = _read_builtin(path, options) if scheme == "builtin" else _READERS[scheme](find(path, folders), options)
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


def _read_npz(path: Path, options: Mapping[str, str]) -> Dataset:
    refuse_unknown(options, {"test"})
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
        return Dataset(arrays["x_train"], labels_of(arrays["y_train"], path), x_test, labels_of(y_test, path))
    if {"x", "y"} <= arrays.keys():
        return hold_out(arrays["x"], labels_of(arrays["y"], path), options)
    raise DataUnusable(f"{path} has the keys {keys}; looked for x_train and y_train (and x_test, y_test), or x and y")


def _read_csv(path: Path, options: Mapping[str, str]) -> Dataset:
    refuse_unknown(options, {"label", "classes", "test"})
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
    return hold_out(x, y, options)


def _read_builtin(name: str, options: Mapping[str, str]) -> Dataset:
    refuse_unknown(options, set())
    if name not in BUILTIN:
        raise DataUnusable(f"no built-in data set {name!r}; there is {', '.join(BUILTIN)}")
    return _read_npz(BUILTIN[name], {})


_READERS: Final[dict[str, Callable[[Path, Mapping[str, str]], Dataset]]] = {
    "npz": _read_npz,
    "csv": _read_csv,
    "tsv": read_tsv,
    "text": read_text,
}


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
