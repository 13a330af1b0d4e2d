"""Ed25519 keys: PEM files (PKCS #8, SubjectPublicKeyInfo) and the ids by which certificates name them."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from services.core import digests
from services.core.private_files import make_directory, sync

if TYPE_CHECKING:  # a process that neither signs nor verifies need not have the package
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

_PEM_BLOCK = re.compile(rb"-----BEGIN [A-Z ]+-----.*?-----END [A-Z ]+-----", re.DOTALL)


class KeyUnreadable(ValueError):
    """The file holds no key of the kind that is needed."""


def generate_key() -> Ed25519PrivateKey:
    """A new key from the operating system's randomness."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.generate()


def key_id(public: Ed25519PublicKey) -> str:
    return digests.of_bytes(public.public_bytes_raw())


def save_key(path: Path, key: Ed25519PrivateKey) -> None:
    """Readable by its owner alone, durable, all or nothing; an existing key is never replaced (FileExistsError)."""
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    make_directory(path.parent)
    fd, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
            file.flush()
            os.fsync(file.fileno())
        path.hardlink_to(name)
    finally:
        Path(name).unlink()
    sync(path.parent)


def load_key(path: Path) -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError) as error:  # TypeError: it is encrypted
        raise KeyUnreadable(f"{path} holds no private key in plain PEM form: {error}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyUnreadable(f"{path} holds a key that is not Ed25519")
    return key


def load_or_create_key(path: Path) -> Ed25519PrivateKey:
    """Processes that start together end up with the same key."""
    if not path.exists():
        with contextlib.suppress(FileExistsError):
            save_key(path, generate_key())
    return load_key(path)


def public_pem(public: Ed25519PublicKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def read_public_keys(pem: bytes) -> list[Ed25519PublicKey]:
    """Every key of a PEM text, which may hold several (the issuer's and those of countersigners)."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    keys = []
    for block in _PEM_BLOCK.findall(pem):
        try:
            key = load_pem_public_key(block)
        except Exception as error:  # ValueError, or UnsupportedAlgorithm of the package
            raise KeyUnreadable(f"this is not a public key in PEM form: {error}") from error
        if not isinstance(key, Ed25519PublicKey):
            raise KeyUnreadable("the public key is not Ed25519")
        keys.append(key)
    if not keys:
        raise KeyUnreadable("there is no public key in PEM form (-----BEGIN PUBLIC KEY-----) in the text")
    return keys
