"""The key that certificates are signed with: on disk in the directory of evidence, on record in the database.

Beside it lie the public keys of all that ever signed here, in their order, so that old certificates can be verified
after a rotation. A key that is on record is never made anew in silence: without it, or with another in its place, the
coordinator is not ready. Methods block on the disk: call them from a thread.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from coordinator.store.evidence import SigningKey
from services.audit.keys import (
    KeyUnreadable,
    generate_key,
    key_id,
    load_key,
    load_or_create_key,
    public_pem,
    read_public_keys,
    save_key,
)
from services.core import private_files

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SIGNING_KEY: Final = "signing-key.pem"
NEXT_KEY: Final = "signing-key.next.pem"
PUBLIC_KEYS: Final = "signing-keys"


class EvidenceLost(Exception):
    """The directory of evidence is not what the database says it was. Says what to do; names no paths."""


LOST: Final = (
    "the signing key of this installation is not in the directory of evidence: mount or restore that directory "
    "(LETHE_EVIDENCE_DIR); if the key is lost for good, `lethe keys rotate --lost`"
)
CHANGED: Final = (
    "the signing key in the directory of evidence is not the one on record for this database: is it the directory of "
    "another replica or installation (LETHE_EVIDENCE_DIR)? Restore the right one; if that key is lost for good, "
    "`lethe keys rotate --lost`"
)


class SigningKeys:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._path, self._next = directory / SIGNING_KEY, directory / NEXT_KEY
        self._public = directory / PUBLIC_KEYS
        self.expected_id: str | None = None
        """The id of the key on record; None: nobody compared yet."""

    def load(self) -> Ed25519PrivateKey:
        """The key that signs now. Raises `KeyUnreadable` when it is lost or is another than the one on record."""
        if self.expected_id is None:
            return load_or_create_key(self._path)
        if not self._path.exists():
            raise KeyUnreadable(LOST)
        key = load_key(self._path)
        current = key_id(key.public_key())
        if current != self.expected_id and not _succeeds(current, self.expected_id, self._published_ids()):
            raise KeyUnreadable(CHANGED)
        return key

    def public_keys(self) -> list[Ed25519PublicKey]:
        """The public keys of all that ever signed here, the one that signs now first."""
        current = self.load().public_key()
        known = {key_id(current): current} | {key_id(key): key for key in reversed(self._published())}
        return list(known.values())

    def stamp(self) -> tuple[int, ...] | None:
        """Differs when the key may have changed."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

    def reconcile(self, recorded: Sequence[SigningKey], *, may_create: bool) -> list[SigningKey]:
        """Compare the directory with the keys on record. Returns all there are, in their order: what is on record, and
        behind it what is not yet, because the installation is new or its database older than the last rotation.
        Raises `EvidenceLost`, `KeyUnreadable`, OSError."""
        self._finish(recorded)
        if not self._path.exists() and (recorded or not may_create):
            raise EvidenceLost(LOST)
        current = _described(load_or_create_key(self._path).public_key())
        published = [_described(key) for key in self._published()]
        ids = [key.key_id for key in published]
        known_id = recorded[-1].key_id if recorded else current.key_id
        if current.key_id != known_id and not _succeeds(current.key_id, known_id, ids):
            raise EvidenceLost(CHANGED)
        known = {key.key_id: key for key in (*recorded, *published)}
        known.pop(current.key_id, None)
        found = [*known.values(), current]
        self._publish(found, published)
        self.expected_id = current.key_id
        return found

    def check(self, recorded: Sequence[SigningKey], *, is_used: bool) -> None:
        """Raise what `reconcile` would; nothing is made or changed."""
        if not recorded and not is_used:
            return  # it is made at the first start
        if recorded and self._next.exists() and key_id(load_key(self._next).public_key()) == recorded[-1].key_id:
            return  # it takes over at the next comparison
        if not self.is_there():
            raise EvidenceLost(LOST)
        current = key_id(load_key(self._path).public_key())
        known = recorded[-1].key_id if recorded else current
        if current != known and not _succeeds(current, known, self._published_ids()):
            raise EvidenceLost(CHANGED)

    def is_there(self) -> bool:
        return self._path.exists()

    def prepare(self) -> SigningKey:
        """A new key, beside the one that signs. It takes over when it is on record: `reconcile`."""
        self._next.unlink(missing_ok=True)
        key = generate_key()
        save_key(self._next, key)
        return _described(key.public_key())

    def is_present(self, recorded: SigningKey) -> bool:
        """Whether the key on record is there to sign."""
        try:
            return key_id(load_key(self._path).public_key()) == recorded.key_id
        except (FileNotFoundError, KeyUnreadable):
            return False

    def _finish(self, recorded: Sequence[SigningKey]) -> None:
        """Let a prepared key that is on record take over, also when whoever prepared it has died since. A key that is
        not on record and in the way is set aside."""
        if not recorded or not self._next.exists():
            return
        new = load_key(self._next).public_key()
        if key_id(new) != recorded[-1].key_id:
            return
        self._publish(recorded, [_described(key) for key in self._published()])
        if self._path.exists() and not any(self.is_present(key) for key in recorded):
            self._path.replace(self._path.with_name(f"{SIGNING_KEY}.set-aside"))
        with contextlib.suppress(FileNotFoundError):  # another process finished it
            self._next.replace(self._path)
        private_files.sync(self._path.parent)

    def _published(self) -> list[Ed25519PublicKey]:
        files = sorted(self._public.glob("*.pem")) if self._public.is_dir() else []
        return [key for file in files for key in read_public_keys(file.read_bytes())]

    def _published_ids(self) -> list[str]:
        return [key_id(key) for key in self._published()]

    def _publish(self, keys: Sequence[SigningKey], published: Sequence[SigningKey]) -> None:
        missing = [key for key in keys if key not in published]
        if not missing:
            return
        private_files.make_directory(self._public)
        for number, key in enumerate(missing, len(published) + 1):
            place = self._public / f"{number:04}.pem"
            part = self._public / f".{number:04}-{os.getpid()}"
            with private_files.create(part) as file:
                file.write(key.public_key.encode())
                file.flush()
                os.fsync(file.fileno())
            part.replace(place)
        private_files.sync(self._public)


def _succeeds(current: str, known: str, published: Sequence[str]) -> bool:
    """Whether a rotation, which the database or this process does not know of yet, put one in the other's place."""
    return known in published and current == published[-1]


def _described(key: Ed25519PublicKey) -> SigningKey:
    return SigningKey(key_id(key), public_pem(key).decode())
