"""A sealed object: a row of segments, each encrypted and authenticated on its own (AES-256-GCM).

    segment = length of the plaintext (4 bytes, little-endian) ‖ nonce (12) ‖ ciphertext ‖ tag (16)

Object and plaintext offset are authenticated with each segment, so none can be exchanged, reordered or moved to another
object. Each has a random nonce: bytes that were cut off and are sealed again never meet the same nonce. A plaintext has
at least one byte and at most `SEGMENT_BYTES`; shorter segments may lie anywhere. What the format cannot show is that
whole segments are missing at the end, or that one was replaced by an earlier version of itself: whoever keeps the
object knows its size and the digest of its plaintext.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID

if TYPE_CHECKING:
    from typing_extensions import Buffer

SEGMENT_BYTES: Final = 256 * 1024
KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16
LENGTH_BYTES: Final = 4
OVERHEAD: Final = LENGTH_BYTES + NONCE_BYTES + TAG_BYTES
"""How much longer a segment is than its plaintext."""
_BODY: Final = LENGTH_BYTES + NONCE_BYTES

ReadAt = Callable[[int, int], bytes]
"""`read_at(position, count)`, as os.pread of a file: fewer bytes only where the sealed bytes end."""


class Unreadable(ValueError):
    """The sealed bytes are not as they were written, or the key is another one. No plaintext was given out."""


class Seal:
    """One object's key. Several threads may use it at once; the cipher runs without Python's lock."""

    def __init__(self, key: bytes, object_id: UUID) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        if len(key) != KEY_BYTES:
            raise ValueError(f"a key has {KEY_BYTES} bytes, this one {len(key)}")
        self._cipher = AESGCM(key)
        self._object = object_id.bytes

    def seal(self, plain: Buffer, offset: int) -> bytes:
        """Whole segments with these bytes, the first of which lies at `offset` of the object's plaintext."""
        source = memoryview(plain).cast("B")
        num_segments = -(-len(source) // SEGMENT_BYTES)
        sealed = bytearray(len(source) + num_segments * OVERHEAD)
        target, nonces = memoryview(sealed), os.urandom(num_segments * NONCE_BYTES)
        for number in range(num_segments):
            start = number * SEGMENT_BYTES
            piece, nonce = source[start : start + SEGMENT_BYTES], nonces[number * NONCE_BYTES :][:NONCE_BYTES]
            segment = target[start + number * OVERHEAD :][: len(piece) + OVERHEAD]
            segment[:LENGTH_BYTES] = struct.pack("<I", len(piece))
            segment[LENGTH_BYTES:_BODY] = nonce
            self._cipher.encrypt_into(nonce, piece, self._place(offset + start), segment[_BODY:])
        return bytes(sealed)

    def open_segment(self, segment: Buffer, offset: int) -> bytes:
        """The plaintext of one whole segment that lies at `offset` of the object's. Raises Unreadable."""
        from cryptography.exceptions import InvalidTag

        nonce, body = self._parts(segment, offset)
        try:
            return self._cipher.decrypt(nonce, body, self._place(offset))
        except InvalidTag:
            raise _changed(offset) from None

    def open_segment_into(self, segment: Buffer, offset: int, target: memoryview) -> None:
        """The same into a buffer that has the plaintext's length. It is zeroed when the segment is Unreadable: before
        the tag is compared it already holds what the bytes decrypt to."""
        from cryptography.exceptions import InvalidTag

        nonce, body = self._parts(segment, offset)
        try:
            self._cipher.decrypt_into(nonce, body, self._place(offset), target)
        except InvalidTag:
            target[:] = bytes(len(target))
            raise _changed(offset) from None

    def _parts(self, segment: Buffer, offset: int) -> tuple[memoryview, memoryview]:
        """Nonce; ciphertext and tag."""
        view = memoryview(segment).cast("B")
        if len(view) <= OVERHEAD or _plain_length(view) != len(view) - OVERHEAD:
            raise Unreadable(
                f"The segment at byte {offset} of the object is cut off, or its length was changed after it was sealed."
            )
        return view[LENGTH_BYTES:_BODY], view[_BODY:]

    def _place(self, offset: int) -> bytes:
        return self._object + struct.pack("<Q", offset)


@dataclass(frozen=True, slots=True)
class _Index:
    """Where segments begin in the plaintext. In the sealed bytes, segment n begins `n * OVERHEAD` later."""

    starts: Sequence[int]
    num_bytes: int

    def length(self, number: int) -> int:
        end = self.starts[number + 1] if number + 1 < len(self.starts) else self.num_bytes
        return end - self.starts[number]


class SealedReader:
    """Reads at most one segment per call of `read_at`. For one thread at a time."""

    def __init__(self, seal: Seal, read_at: ReadAt, sealed_bytes: int) -> None:
        self._seal = seal
        self._read_at = read_at
        self._sealed_bytes = sealed_bytes
        self._known: _Index | None = None
        self._last: tuple[int, bytes] = (-1, b"")  # neighbouring small reads open a segment once

    @property
    def num_bytes(self) -> int:
        """The length of the plaintext of all whole segments; one that was cut off at the end does not count."""
        return self._index.num_bytes

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill the buffer from `offset` of the plaintext on. Raises Unreadable, also when the object ends before."""
        target = buffer.cast("B")
        done = 0
        for number, begin, end in self._parts(offset, offset + len(target)):
            part = target[done : done + end - begin]
            if len(part) == self._index.length(number) and self._last[0] != number:
                self._seal.open_segment_into(self._sealed(number), self._index.starts[number], part)
            else:
                part[:] = memoryview(self._opened(number))[begin:end]
            done += len(part)

    def pieces(self, start: int, end: int) -> Iterator[bytes]:
        """The plaintext from `start` up to `end`, a segment at a time. Raises Unreadable, at the first piece also when
        the object ends before."""
        for number, begin, stop in self._parts(start, end):
            if stop - begin == self._index.length(number) and self._last[0] != number:
                yield self._seal.open_segment(self._sealed(number), self._index.starts[number])
            else:
                yield self._opened(number)[begin:stop]

    def _parts(self, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """(number of a segment, from where, to where in its plaintext) that together are the range."""
        index = self._index
        if not 0 <= start <= end:
            raise ValueError(f"bytes {start} to {end} are no range")
        if end > index.num_bytes:
            raise Unreadable(f"The sealed object ends after {index.num_bytes} bytes, before byte {end}.")
        number = bisect_right(index.starts, start) - 1
        while start < end:
            begin, length = start - index.starts[number], index.length(number)
            stop = min(length, begin + end - start)
            yield number, begin, stop
            start += stop - begin
            number += 1

    def _opened(self, number: int) -> bytes:
        if self._last[0] != number:
            self._last = number, self._seal.open_segment(self._sealed(number), self._index.starts[number])
        return self._last[1]

    def _sealed(self, number: int) -> bytes:
        return self._read_at(self._index.starts[number] + number * OVERHEAD, self._index.length(number) + OVERHEAD)

    @property
    def _index(self) -> _Index:
        if self._known is None:
            self._known = self._regular_index() or _walk(self._read_at, self._sealed_bytes)
        return self._known

    def _regular_index(self) -> _Index | None:
        """All segments full except perhaps the last, as nearly always, and this shown by reading the last alone. If it
        can be opened at the plaintext offset that it has when all before it are full, then they are: that many bytes
        and so little overhead leave no room for a shorter one."""
        whole, rest = divmod(self._sealed_bytes, SEGMENT_BYTES + OVERHEAD)
        if rest:
            whole, rest = whole + 1, rest - OVERHEAD
        else:
            rest = SEGMENT_BYTES
        if whole == 0 or rest <= 0:
            return None
        start = (whole - 1) * SEGMENT_BYTES
        sealed = self._read_at(start + (whole - 1) * OVERHEAD, rest + OVERHEAD)
        try:
            self._last = whole - 1, self._seal.open_segment(sealed, start)
        except Unreadable:
            return None
        return _Index(range(0, start + rest, SEGMENT_BYTES), start + rest)


def whole_segment(head: Buffer, sealed_bytes: int) -> int:
    """The length of the plaintext of a segment that begins with `head` where `sealed_bytes` are left; 0 when no whole
    one is there: an unfinished object goes on from there after a crash. Only its length is read: whether a segment is
    as it was written shows when it is opened."""
    length = _plain_length(head)
    return length if length + OVERHEAD <= sealed_bytes else 0


def _walk(read_at: ReadAt, sealed_bytes: int) -> _Index:
    """Walk from length to length, up to what is no whole segment."""
    starts: list[int] = []
    end = 0
    while (position := end + len(starts) * OVERHEAD) + OVERHEAD < sealed_bytes:
        length = whole_segment(read_at(position, LENGTH_BYTES), sealed_bytes - position)
        if length == 0:
            break
        starts.append(end)
        end += length
    return _Index(starts, end)


def _plain_length(head: Buffer) -> int:
    """What the first bytes of a segment say; 0 when they cannot be the beginning of one."""
    view = memoryview(head)
    if len(view) < LENGTH_BYTES:
        return 0
    (length,) = struct.unpack_from("<I", view)
    return int(length) if length <= SEGMENT_BYTES else 0


def _changed(offset: int) -> Unreadable:
    return Unreadable(
        f"The segment at byte {offset} of the object was changed after it was sealed, or it was sealed with another key"
        " or at another place."
    )
