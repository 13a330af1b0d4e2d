"""The secrets of callbacks, sealed: whoever reads the database or a backup of it cannot sign in our place.

They have to be had again for every delivery, so they are not hashed but encrypted (AES-256-GCM), under a key in the
directory of evidence. The request and the address are authenticated with each: a sealed secret is of no use in another
row. Methods block on the disk: call them from a thread.
"""

from __future__ import annotations

import base64
import contextlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import UUID

from services.core.private_files import make_directory, sync

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_FILE: Final = "callback-key"
KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_PREFIX: Final = "sealed:"


class SecretUnreadable(Exception):
    """The key that a secret was sealed with is lost, or another."""


def is_sealed(secret: str) -> bool:
    return secret.startswith(_PREFIX)


class CallbackSecrets:
    """Several processes may share the key."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def seal(self, secret: str, erasure_id: UUID, url: str) -> str:
        nonce = os.urandom(_NONCE_BYTES)
        sealed = _cipher(self._find_or_make()).encrypt(nonce, secret.encode(), _context(erasure_id, url))
        return _PREFIX + base64.b64encode(nonce + sealed).decode()

    def open(self, stored: str, erasure_id: UUID, url: str) -> str:
        """Raises SecretUnreadable. What an older release stored is not sealed."""
        if not is_sealed(stored):
            return stored
        from cryptography.exceptions import InvalidTag

        content = base64.b64decode(stored.removeprefix(_PREFIX))
        try:
            cipher = _cipher(self._path.read_bytes())
            return cipher.decrypt(content[:_NONCE_BYTES], content[_NONCE_BYTES:], _context(erasure_id, url)).decode()
        except (FileNotFoundError, InvalidTag) as error:
            raise SecretUnreadable("the key of the callback's secret is lost") from error

    def _find_or_make(self) -> bytes:
        """The key. If several make one at once, one of them wins; it is durable before anything is sealed with it."""
        if not self._path.exists():
            make_directory(self._path.parent)
            with tempfile.NamedTemporaryFile(dir=self._path.parent, prefix=".new-") as file:  # mode 0600
                file.write(os.urandom(KEY_BYTES))
                file.flush()
                os.fsync(file.fileno())
                with contextlib.suppress(FileExistsError):
                    os.link(file.name, self._path)
            sync(self._path.parent)
        return self._path.read_bytes()


def _context(erasure_id: UUID, url: str) -> bytes:
    return f"{erasure_id} {url}".encode()


def _cipher(key: bytes) -> AESGCM:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # slow to import, and only callbacks need it

    return AESGCM(key)
