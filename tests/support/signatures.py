"""Signing keys whose bytes a test chooses, and certificates with more than one signature."""

from __future__ import annotations

from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from services.audit.certificate import sign


def key_of_seed(seed: bytes) -> Ed25519PrivateKey:
    """The key whose 32 private bytes (RFC 8032) are given."""
    return Ed25519PrivateKey.from_private_bytes(seed)


def signed_by(statement: dict[str, Any], *keys: Ed25519PrivateKey) -> dict[str, Any]:
    """A DSSE envelope with a signature of each key, in the order of their ids."""
    signatures = [signature for key in keys for signature in sign(statement, key)["signatures"]]
    return {**sign(statement, keys[0]), "signatures": sorted(signatures, key=lambda one: one["keyid"])}
