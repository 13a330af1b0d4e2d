"""Looking for bytes that must be gone: in files as they lie, and in everything that any key still opens.

The search is complete: whatever window of `WINDOW` bytes a file shares with a needle holds a whole word of the needle
that begins at a multiple of `STRIDE`. Every such word is looked up at every position of the file, and what is found is
compared byte by byte. Text forms count as well: a dump writes bytes as hexadecimal digits, a document as base64.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import numpy as np
import numpy.typing as npt

from services.sealing.envelope import combined, unwrap
from services.sealing.segments import Seal, SealedReader, Unreadable

WINDOW: Final = 64
_WORD: Final = 8
STRIDE: Final = WINDOW - _WORD + 1
_TABLE_BITS: Final = 22
_SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)
Floats = npt.NDArray[np.float64]


class Needles:
    """Contents of which no window may be found. They must be random: a row of zeros is everywhere."""

    def __init__(self, contents: Iterable[bytes]) -> None:
        texts = [text for content in set(contents) for text in _forms(content)]
        assert texts, "nothing to look for"
        self._texts = texts
        words, places = [], []
        for number, text in enumerate(texts):
            offsets = np.arange(0, len(text) - _WORD + 1, STRIDE)
            every = np.lib.stride_tricks.sliding_window_view(np.frombuffer(text, np.uint8), _WORD)
            words.append(np.ascontiguousarray(every[offsets]).view("<u8")[:, 0])
            places.append(np.stack([np.full(len(offsets), number), offsets], axis=1))
        together, where = np.concatenate(words), np.concatenate(places)
        order = np.argsort(together, kind="stable")
        self._words, self._places = together[order], where[order]
        self._table = np.zeros(1 << _TABLE_BITS, np.bool_)
        self._table[_slots(self._words)] = True
        self._clean: set[bytes] = set()
        """What was searched before: databases and backups have many files in common."""

    def found_in(self, data: bytes) -> int | None:
        """Where a window of a needle begins in the data; None: nowhere."""
        for shift in range(min(_WORD, max(0, len(data) - _WORD + 1))):
            words = np.frombuffer(data, "<u8", (len(data) - shift) // _WORD, shift)
            likely = np.flatnonzero(self._table[_slots(words)])
            nearest = np.minimum(np.searchsorted(self._words, words[likely]), len(self._words) - 1)
            for index in likely[self._words[nearest] == words[likely]]:
                position = int(index) * _WORD + shift
                if (start := self._confirmed(data, position, words[index])) is not None:
                    return start
        return None

    def found_under(self, *directories: Path) -> list[str]:
        """The files that hold one, of all files there."""
        return [str(path) for path in files_under(*directories) if not self._is_clean(_content(path))]

    def _is_clean(self, data: bytes) -> bool:
        mark = hashlib.sha256(data).digest()
        if mark not in self._clean and self.found_in(data) is None:
            self._clean.add(mark)
        return mark in self._clean

    def _confirmed(self, data: bytes, position: int, word: np.uint64) -> int | None:
        first, last = np.searchsorted(self._words, word, "left"), np.searchsorted(self._words, word, "right")
        for number, offset in self._places[first:last]:
            text = self._texts[number]
            begin, end = 0, _WORD
            while begin > -WINDOW and min(position, offset) + begin > 0:
                if data[position + begin - 1] != text[offset + begin - 1]:
                    break
                begin -= 1
            while end < WINDOW and position + end < len(data) and offset + end < len(text):
                if data[position + end] != text[offset + end]:
                    break
                end += 1
            if end - begin >= WINDOW:
                return int(position + begin)
        return None


def _forms(content: bytes) -> Iterator[bytes]:
    """As they are, and as text would write them."""
    yield content
    yield content.hex().encode()
    for skipped in range(3):
        yield base64.b64encode(content[skipped:])


def _slots(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    return np.asarray((words * _SPREAD) >> np.uint64(64 - _TABLE_BITS))


def files_under(*directories: Path) -> list[Path]:
    return sorted(path for directory in directories for path in directory.rglob("*") if path.is_file())


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:  # a server removed it meanwhile
        return b""


# --- what keys open ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """Of the table of blobs, now or in a backup."""

    id: UUID
    origin: str
    digest: str | None
    data_key: bytes | None


@dataclass
class Store:
    """A database with its stored objects: the one that is served, or a backup."""

    rows: list[Row] = field(default_factory=list)
    objects: dict[str, bytes] = field(default_factory=dict)
    """By the name that they lie under."""

    def add_files(self, directory: Path) -> None:
        self.objects |= {path.name: _content(path) for path in files_under(directory)}


@dataclass(frozen=True, slots=True)
class Readable:
    origins: frozenset[str]
    plain: bytes


def opened(stores: Iterable[Store], keys: Mapping[str, bytes]) -> list[Readable]:
    """Whatever can be read of all objects anywhere, with any row anywhere and any key or pair of keys."""
    together = list(stores)
    outer = [*keys.values(), *(combined(one, other) for one, other in product(keys.values(), repeat=2))]
    data_keys: dict[UUID, set[bytes]] = {}
    origins: dict[UUID, set[str]] = {}
    for row in {row for store in together for row in store.rows}:
        origins.setdefault(row.id, set()).add(row.origin)
        if row.data_key is not None:
            data_keys.setdefault(row.id, set()).update(_unwrapped(row.id, row.data_key, outer))
    plain: dict[bytes, frozenset[str]] = {}
    for name, sealed in {item for store in together for item in store.objects.items()}:
        blob_id = UUID(hex=name)
        for key in data_keys.get(blob_id, ()):
            content = _open(Seal(key, blob_id), sealed)
            plain[content] = plain.get(content, frozenset()) | origins[blob_id]
    return [Readable(whose, content) for content, whose in plain.items()]


def _unwrapped(blob_id: UUID, wrapped: bytes, outer: list[bytes]) -> Iterator[bytes]:
    for key in outer:
        try:
            yield unwrap(key, wrapped, blob_id)
        except Unreadable:
            continue


def _open(seal: Seal, sealed: bytes) -> bytes:
    """As much as can be read from the beginning."""
    reader = SealedReader(seal, lambda position, count: sealed[position : position + count], len(sealed))
    found = bytearray()
    try:
        for piece in reader.pieces(0, reader.num_bytes):
            found += piece
    except Unreadable:
        pass
    return bytes(found)


# --- what models tell -------------------------------------------------------------------------------------------------


def most_alike(models: list[Floats], updates: list[Floats]) -> float:
    """The largest cosine between the difference of any two of the models and any of the updates."""
    if len(models) < 2:
        return 0.0
    stacked, others = np.stack(models), np.stack(updates)
    others = others / np.linalg.norm(others, axis=1, keepdims=True)
    along, gram = stacked @ others.T, stacked @ stacked.T
    squares = np.diag(gram)
    distances = np.sqrt(np.maximum(squares[:, None] + squares[None, :] - 2 * gram, 0.0))
    largest = 0.0
    for first in range(len(models)):
        far = distances[first] > 1e-6 * np.sqrt(squares[first] + 1e-30)
        if far.any():
            cosines = np.abs(along[first] - along[far]) / distances[first][far][:, None]
            largest = max(largest, float(cosines.max()))
    return largest


def body_of(safetensors: bytes) -> bytes:
    """Without the header, which all models of a run share."""
    return safetensors[8 + int.from_bytes(safetensors[:8], "little") :]


def floats_of(safetensors: bytes) -> Any:
    return np.frombuffer(body_of(safetensors), "<f4").astype(np.float64)
