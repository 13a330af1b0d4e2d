"""A short text, sealed under the keys of all who own it: when one of them is destroyed, nobody can read it any more."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final
from uuid import UUID

from services.sealing.segments import KEY_BYTES, NONCE_BYTES, Unreadable

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_OWNERS: Final = b"lethe note v1"


def seal_note(keys: Sequence[bytes], note: bytes, object_id: UUID, place: int) -> bytes:
    """nonce (12) ‖ encrypted note ‖ tag (16); good for this place of this object only."""
    nonce = os.urandom(NONCE_BYTES)
    return nonce + _cipher(keys).encrypt(nonce, note, _context(object_id, place))


def open_note(keys: Sequence[bytes], sealed: bytes, object_id: UUID, place: int) -> bytes:
    """Raises Unreadable."""
    from cryptography.exceptions import InvalidTag

    try:
        return _cipher(keys).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], _context(object_id, place))
    except (InvalidTag, ValueError):
        raise Unreadable("The note was sealed under other keys or for another place, or changed.") from None


def _cipher(keys: Sequence[bytes]) -> AESGCM:
    """The order of the keys does not matter."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    if not keys or any(len(key) != KEY_BYTES for key in keys):
        raise ValueError(f"a note has owners, each with a key of {KEY_BYTES} bytes")
    return AESGCM(HKDF(SHA256(), KEY_BYTES, None, _OWNERS).derive(b"".join(sorted(keys))))


def _context(object_id: UUID, place: int) -> bytes:
    return object_id.bytes + place.to_bytes(4, "big")
