"""What the coordinator asks of the store of keys, and how keys are called.

Methods block on the disk: call them from a thread. Only `find` of a key that this process has seen before is quick
enough for the event loop.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from itertools import count
from typing import Final, Protocol
from uuid import UUID

KeyName = str

_UUID: Final = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_EARLIER: Final = re.compile(_UUID)
_EPOCH: Final = re.compile(r"([0-9]+)(?:-[0-9]+)?")
_NAME: Final = re.compile(
    rf"client-{_UUID}\.[0-9]{{1,20}}|cohort-{_UUID}\.[0-9a-z-]{{1,40}}|federation-{_UUID}|{_UUID}"
)


def client_key(client_id: UUID, number: int = 0) -> KeyName:
    """`number` counts the keys that the client had: an erasure of samples ends one and the next begins."""
    return checked(f"client-{client_id}.{number}")


def earlier_client_key(client_id: UUID) -> KeyName:
    """What version 0.1 sealed copies of the client's updates with."""
    return checked(str(client_id))


def cohort_key(cohort_id: UUID, epoch: int | str, number: int = 0) -> KeyName:
    """`number` counts the keys of an epoch: a database that is restored from before an erasure comes to epochs again
    whose keys were destroyed."""
    return checked(f"cohort-{cohort_id}.{epoch}-{number}" if number else f"cohort-{cohort_id}.{epoch}")


def federation_key(federation_id: UUID) -> KeyName:
    return checked(f"federation-{federation_id}")


def is_of_client(name: KeyName, client_id: UUID) -> bool:
    return name == earlier_client_key(client_id) or name.startswith(f"client-{client_id}.")


def is_of_cohort(name: KeyName, cohort_id: UUID) -> bool:
    return name.startswith(f"cohort-{cohort_id}.")


def epoch_of(name: KeyName) -> int | None:
    """The epoch that a cohort's key belongs to; None for a key of what an erasure kept."""
    found = _EPOCH.fullmatch(name.partition(".")[2])
    return None if found is None else int(found[1])


def kept_key(cohort_id: UUID, erasure_id: UUID, number: int = 0) -> KeyName:
    """The key of what an erasure keeps of a cohort. It replaces those of earlier erasures; so an erasure that is
    carried out again in a restored database may need another one."""
    return cohort_key(cohort_id, str(erasure_id), number)


def is_earlier(name: KeyName) -> bool:
    return _EARLIER.fullmatch(name) is not None


def is_key_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def checked(name: KeyName) -> KeyName:
    """Raises ValueError: a name becomes the name of a file."""
    if not is_key_name(name):
        raise ValueError(f"{name!r} is not the name of a key")
    return name


class Destroyed(LookupError):
    """The key of that name was destroyed."""


class Turn(Protocol):
    def close(self) -> None: ...


class KeyStore(Protocol):
    """Several threads, and several processes that share the store, may use it at once.

    A key has 32 random bytes. Whoever is given one may rely on it: it survives a crash, and it is what everybody else
    gets under that name. Once `destroy` has returned, nobody is given it again.
    """

    def find(self, name: KeyName) -> bytes | None:
        """None: it was destroyed, or never made."""

    def find_or_make(self, name: KeyName) -> bytes:
        """The key of that name, which is made if there is none; of several that make it at once, one does. Raises
        `Destroyed`: whoever was about to use a key of that name, and comes too late, must not make another."""

    def destroy(self, names: Collection[KeyName]) -> None:
        """For good, also those that were never made: their names are never used again. One that was interrupted is
        completed by repeating it."""

    def is_destroyed(self, name: KeyName) -> bool:
        """Whether it was made once and destroyed; a key that was never made was not."""

    def take_turn(self) -> Turn | None:
        """For whoever destroys keys and must not meet another who does; None while somebody has it. It ends with
        `close`, and with the process."""

    def note(self, name: KeyName, wrapped: Mapping[UUID, bytes]) -> None:
        """Note, by the ids of blobs of a cohort, what their keys are as wrapped under the key of that name. It lies
        beside the keys, for databases that are restored from before."""

    def noted(self, blob_id: UUID, cohort_id: UUID) -> tuple[KeyName, bytes] | None:
        """The key that a blob of a cohort was last noted under, if that is still there, and what was noted."""

    def names(self) -> set[KeyName]:
        """The names of all keys that there are."""

    def probe(self) -> None:
        """Raise OSError if no key could be made now."""


def newest(keys: KeyStore, name_of: Callable[[int], KeyName]) -> KeyName:
    """The first of the numbered names whose key was not destroyed."""
    return next(name for name in map(name_of, count()) if not keys.is_destroyed(name))
