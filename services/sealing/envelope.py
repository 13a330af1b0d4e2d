"""The envelope: an object's own key, encrypted under the key that decides for how long the object can be read.

Whoever destroys the outer key makes every copy of the object unreadable, wherever it lies. To keep an object its inner
key is wrapped again under another outer key; its segments stay as they are.
"""

from __future__ import annotations

import os
from typing import Final
from uuid import UUID

from services.sealing.segments import KEY_BYTES, NONCE_BYTES, TAG_BYTES, Unreadable

WRAPPED_BYTES: Final = NONCE_BYTES + KEY_BYTES + TAG_BYTES
_CLIENT_AND_COHORT: Final = b"lethe client and cohort v1"


def new_data_key() -> bytes:
    """Random; for one object only."""
    return os.urandom(KEY_BYTES)


def wrap(key_encryption_key: bytes, data_key: bytes, object_id: UUID) -> bytes:
    """nonce (12) ‖ encrypted data key (32) ‖ tag (16); good for this object only."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    _check(key_encryption_key, data_key)
    nonce = os.urandom(NONCE_BYTES)
    return nonce + AESGCM(key_encryption_key).encrypt(nonce, data_key, object_id.bytes)


def unwrap(key_encryption_key: bytes, wrapped: bytes, object_id: UUID) -> bytes:
    """The data key. Raises Unreadable."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    _check(key_encryption_key)
    if len(wrapped) != WRAPPED_BYTES:
        raise Unreadable(f"A wrapped key has {WRAPPED_BYTES} bytes, the stored one has {len(wrapped)}.")
    nonce, sealed = wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:]
    try:
        return AESGCM(key_encryption_key).decrypt(nonce, sealed, object_id.bytes)
    except InvalidTag:
        raise Unreadable("The object's key was wrapped under another key or for another object, or changed.") from None


def combined(client_key: bytes, cohort_key: bytes) -> bytes:
    """The key for what a client sent to a cohort (HKDF-SHA256): it is gone when either of the two is destroyed."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    _check(client_key, cohort_key)
    return HKDF(SHA256(), KEY_BYTES, None, _CLIENT_AND_COHORT).derive(client_key + cohort_key)


def _check(*keys: bytes) -> None:
    if any(len(key) != KEY_BYTES for key in keys):
        raise ValueError(f"a key has {KEY_BYTES} bytes")
