"""Authenticated encryption of a stream with one key per client, so that deleting the key erases every copy.

AES-256-GCM in segments of 64 KiB, in the STREAM construction: a key of its own for each file, derived from the client's
key and a random salt (HKDF-SHA256); nonce = segment number and a flag for the last one. So segments cannot be swapped,
dropped or cut off, and no nonce repeats under a key. `context` (whose update of which round) is authenticated with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from io import FileIO
from typing import TYPE_CHECKING, Final

from services.core.errors import Rejected

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

SEGMENT_BYTES: Final = 64 * 1024
KEY_BYTES: Final = 32
SALT_BYTES: Final = 32
_TAG_BYTES: Final = 16
_LAST: Final = b"\x01"


def seal(chunks: Iterable[bytes], key: bytes, salt: bytes, context: bytes) -> Iterator[bytes]:
    """`salt` must be fresh for each file; it is the first thing written."""
    cipher = _cipher(key, salt)
    yield salt
    number, pending = 0, bytearray()
    for chunk in chunks:
        pending += chunk
        while len(pending) > SEGMENT_BYTES:  # the last segment is not written before it is known to be the last
            yield cipher.encrypt(_nonce(number, b"\x00"), bytes(pending[:SEGMENT_BYTES]), context)
            del pending[:SEGMENT_BYTES]
            number += 1
    yield cipher.encrypt(_nonce(number, _LAST), bytes(pending), context)


def unseal(file: FileIO, key: bytes, context: bytes) -> Iterator[bytes]:
    """The plain chunks. Raises Rejected("digest-mismatch") at the first segment that is not as it was written, which
    it also is under another key: a shredded key makes the file noise."""
    from cryptography.exceptions import InvalidTag

    salt = _read(file, SALT_BYTES)
    if len(salt) < SALT_BYTES:
        raise Rejected("digest-mismatch", "the stored update is cut off")
    cipher = _cipher(key, salt)
    number, segment = 0, _read(file, SEGMENT_BYTES + _TAG_BYTES)
    while True:
        following = _read(file, SEGMENT_BYTES + _TAG_BYTES)
        flag = b"\x00" if following else _LAST
        try:
            yield cipher.decrypt(_nonce(number, flag), segment, context)
        except (InvalidTag, ValueError) as error:
            raise Rejected("digest-mismatch", "the stored update was changed, or its key is another one") from error
        if not following:
            return
        number, segment = number + 1, following


def _cipher(key: bytes, salt: bytes) -> AESGCM:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    if len(key) != KEY_BYTES or len(salt) != SALT_BYTES:
        raise ValueError(f"key and salt must have {KEY_BYTES} and {SALT_BYTES} bytes")
    return AESGCM(HKDF(SHA256(), KEY_BYTES, salt, b"lethe update history v1").derive(key))


def _nonce(number: int, flag: bytes) -> bytes:
    return number.to_bytes(11) + flag


def _read(file: FileIO, num_bytes: int) -> bytes:
    found = bytearray()
    while len(found) < num_bytes and (part := file.read(num_bytes - len(found))):
        found += part
    return bytes(found)
