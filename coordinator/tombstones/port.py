"""What the coordinator asks of the log of tombstones.

An entry is written before the fence commits. A database that was restored from an older backup lacks the fence; the log
does not, and the coordinator fences again before it becomes ready. The database in turn knows how far it has come with
the log, so that a log that lost entries is noticed. The log holds ids, epochs, row numbers of samples and what was
asked for, never names or data.
Methods block on the disk: call them from a thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol
from uuid import UUID

from pydantic import AwareDatetime, Field

from services.wire.message import Digest, Id, Message
from services.wire.v1.erasure import Ground


class LogCorrupt(Exception):
    """The log was changed after it was written. Nothing may be served until a person has looked at it."""


class FencedCohort(Message):
    run_id: Id
    cohort_id: Id
    epoch: Annotated[int, Field(ge=0)] = Field(description="The new epoch: work of an older one is refused.")


class ErasedSamples(Message):
    client_id: Id
    samples: Annotated[tuple[int, ...], Field(min_length=1)]


class FiledAs(Message):
    """What the request asked for, as far as it can be asked for again: no names, no free words but the regulation's, no
    addresses."""

    regulation: str
    ground: Ground | None = None
    legal_deadline: AwareDatetime
    method: str
    params: dict[str, Any] = Field(default_factory=dict)
    guarantee: Literal["exact", "approximate"]
    recovery_rounds: int | None = None
    recovery_method: str | None = None
    recovery_params: dict[str, Any] = Field(default_factory=dict)
    reward: float | None = None
    num_callbacks: Annotated[int, Field(ge=0)] = Field(
        default=0, description="Where to and with which secret: not here."
    )


class Tombstone(Message):
    """`scope` client: the clients are gone for ever. samples: they stay, their cohorts are fenced."""

    request_id: Id
    federation_id: Id
    scope: Literal["client", "samples"]
    client_ids: Annotated[tuple[Id, ...], Field(min_length=1)]
    cohorts: tuple[FencedCohort, ...]
    samples: tuple[ErasedSamples, ...] = ()
    at: AwareDatetime
    requested_by: Annotated[str, Field(min_length=1, max_length=80)] | None = Field(
        default=None, description="Who filed the request: the id of a client or a credential. Older entries lack it."
    )
    filed_as: FiledAs | None = Field(default=None, description="Older entries lack it.")

    def says_the_same_as(self, other: Tombstone) -> bool:
        """Apart from when it was said, and on which request of whom."""
        same = {"at": other.at, "requested_by": other.requested_by, "filed_as": other.filed_as}
        return self.model_copy(update=same) == other


Stamp = tuple[int, ...]
"""Differs when the log may have changed."""


@dataclass(frozen=True, slots=True)
class Contents:
    entries: tuple[Tombstone, ...]
    digests: tuple[Digest, ...]
    """The one with index n names the log's first n entries: there is one more than entries."""
    stamp: Stamp | None


class TombstoneLog(Protocol):
    def append(self, entry: Tombstone) -> int:
        """Its index, once it is durable. An entry that says what one of the same request already says is not repeated.

        A request whose fence is decided again with other epochs gets a further entry: both hold. Raises `LogCorrupt`,
        and OSError when the medium takes no writes (then the entry is not in the log).
        """

    def probe(self) -> None:
        """Raise as `append` would now: the medium takes no writes, or the log was changed. Nothing is added to it."""

    def entries(self) -> tuple[Tombstone, ...]:
        """All of them, oldest first, after checking every byte. Raises `LogCorrupt`."""

    def contents(self) -> Contents:
        """All there is now, even if entries that were there before are not: whoever calls knows what must be there.
        What was checked before is not checked again. Raises `LogCorrupt`."""

    def salvage(self) -> int:
        """Put a damaged log aside and go on with the lines before the first that is wrong. Returns how many bytes were
        left out; 0: nothing is wrong with it, and nothing was done."""

    def stamp(self) -> Stamp | None:
        """Cheap. None: there is no log."""


def newest_epochs(entries: Iterable[Tombstone]) -> dict[tuple[UUID, UUID], int]:
    """(run, cohort) -> the lowest epoch that its row may have."""
    epochs: dict[tuple[UUID, UUID], int] = {}
    for entry in entries:
        for cohort in entry.cohorts:
            place = (cohort.run_id, cohort.cohort_id)
            epochs[place] = max(cohort.epoch, epochs.get(place, 0))
    return epochs


def erased_clients(entries: Iterable[Tombstone]) -> set[UUID]:
    return {client_id for entry in entries if entry.scope == "client" for client_id in entry.client_ids}
