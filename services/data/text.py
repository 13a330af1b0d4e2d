"""Text as numbers: the bytes of UTF-8, one token each, so that every client agrees on them without a vocabulary."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np

from services.data.dataset import Array, Dataset, DataUnusable, hold_out, refuse_unknown

PADDING: Final = 256
DEFAULT_LENGTH: Final = 128
LONGEST: Final = 65_536


def read_text(path: Path, options: Mapping[str, str]) -> Dataset:
    """Running text. x: windows of `length` bytes, one after the other; y: the byte that follows each."""
    refuse_unknown(options, {"length", "test"})
    length = _length(options)
    tokens = np.frombuffer(_read(path).encode(), dtype=np.uint8).astype(np.uint16)
    num_windows = (len(tokens) - 1) // length
    if num_windows < 1:
        raise DataUnusable(f"{path} has {len(tokens)} bytes; length={length} needs {length + 1} at least")
    x = tokens[: num_windows * length].reshape(num_windows, length)
    y = tokens[length : num_windows * length + 1 : length].astype(np.int64)
    return hold_out(x, y, options)


def read_tsv(path: Path, options: Mapping[str, str]) -> Dataset:
    """One text a line. x: its first `length` bytes, padded; y: the class in the label's column.

    With a column `split`, the rows `train` and `test` are taken and all others left; without, some are held out.
    """
    refuse_unknown(options, {"text", "label", "classes", "length", "test"})
    names, *rows = [line.split("\t") for line in _read(path).rstrip("\n").split("\n")]
    if not rows:
        raise DataUnusable(f"{path} needs a first line with column names and at least one row")
    text, label = options.get("text", "text"), options.get("label", "label")
    if missing := [name for name in (text, label) if name not in names]:
        raise DataUnusable(
            f"{path}: no column {', '.join(missing)}; the columns are {', '.join(names)}: choose with ?text=…&label=…"
        )
    if wrong := next((number for number, row in enumerate(rows, start=2) if len(row) != len(names)), None):
        raise DataUnusable(f"{path}: line {wrong} does not have {len(names)} fields")
    x = _padded([row[names.index(text)] for row in rows], _length(options))
    y = _classes([row[names.index(label)] for row in rows], options, path)
    if "split" not in names:
        return hold_out(x, y, options)
    if "test" in options:
        raise DataUnusable(f"{path} has a column split: leave out test={options['test']}")
    split = np.array([row[names.index("split")] for row in rows])
    train, test = np.flatnonzero(split == "train"), np.flatnonzero(split == "test")
    return Dataset(x[train], y[train], x[test], y[test], train, test)


def _read(path: Path) -> str:
    try:
        content = path.read_bytes()
        return (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise DataUnusable(f"{path} cannot be read as UTF-8 text ({error})") from error


def _length(options: Mapping[str, str]) -> int:
    text = options.get("length", str(DEFAULT_LENGTH))
    if not text.isdecimal() or not 1 <= int(text) <= LONGEST:
        raise DataUnusable(f"length={text}: give the number of bytes per sample, from 1 to {LONGEST}")
    return int(text)


def _padded(texts: list[str], length: int) -> Array:
    x = np.full((len(texts), length), PADDING, dtype=np.uint16)
    for row, text in zip(x, texts, strict=True):
        tokens = np.frombuffer(text.encode()[:length], dtype=np.uint8)
        row[: len(tokens)] = tokens
    return x


def _classes(labels: list[str], options: Mapping[str, str], path: Path) -> Array:
    try:
        if "classes" not in options:
            return np.array([int(label) for label in labels], dtype=np.int64)
        numbers = {name: number for number, name in enumerate(options["classes"].split(","))}
        return np.array([numbers[label] for label in labels], dtype=np.int64)
    except (ValueError, KeyError) as error:
        found = ",".join(sorted(set(labels))[:30])
        raise DataUnusable(
            f"{path}: label {error} is not a known class; name all of them, in the order agreed by all clients,"
            f" as in ?classes={found}"
        ) from error
