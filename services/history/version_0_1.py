"""Copies of updates as version 0.1 sealed them, one key per client; they are sealed anew after an upgrade.

AES-256-GCM in segments of 64 KiB, in the STREAM construction: a key of its own for each file, derived from the client's
key and a random salt (HKDF-SHA256); nonce = segment number and a flag for the last one. So segments cannot be swapped,
dropped or cut off, and no nonce repeats under a key. `context` (whose update of which round) is authenticated with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Final

from services.core.errors import Rejected
from services.history.spec import UpdateHistory
from services.history.store import decode_copy
from services.tensors.streams import Writable

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

SEGMENT_BYTES: Final = 64 * 1024
KEY_BYTES: Final = 32
SALT_BYTES: Final = 32
_TAG_BYTES: Final = 16
_LAST: Final = b"\x01"
_HEADER_BYTES: Final = 128
"""The length of the header of the stored file, a safetensors file with one tensor of bytes."""


def restore_sealed(stored: Path, out: Writable, policy: UpdateHistory, key: bytes, context: bytes, digest: str) -> None:
    """Write the update to `out`. Raises what `unsealed_copy` raises."""
    decode_copy(unsealed_copy(stored, policy, key, context, digest), out, policy)


def unsealed_copy(stored: Path, policy: UpdateHistory, key: bytes, context: bytes, digest: str) -> Iterator[bytes]:
    """A copy as it is kept today, before it is sealed. Raises Rejected when the stored bytes are not those that were
    kept, or the key is not the one they were sealed with."""
    with stored.open("rb", buffering=0) as file:
        if f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}" != digest:
            raise Rejected("digest-mismatch", "the stored update does not have the digest it was kept under")
        file.seek(_HEADER_BYTES)
        bound = f"{policy.dtype}\x1f{policy.compression}\x1f".encode() + context
        yield from unseal(file, key, bound)


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
