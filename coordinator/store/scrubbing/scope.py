"""Whom and what a purge is about."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID


@dataclass(frozen=True, slots=True)
class ScrubScope:
    """Who leaves, and which models, updates and epochs were with them."""

    erasure_id: UUID
    federation_id: UUID
    client_ids: frozenset[UUID]
    names: frozenset[str]
    stays: bool
    """Whether the clients go on, without some samples."""
    last_epochs: dict[UUID, int]
    """The last epoch with them, by cohort: what was said and computed there up to it was with them."""
    run_ids: frozenset[UUID]
    model_ids: frozenset[UUID]
    """Models that are purged."""
    mended_ids: frozenset[UUID]
    """Models that a method made to forget the clients: they stay, without figures that the clients reported."""
    update_ids: frozenset[UUID]
    task_ids: set[UUID] = field(default_factory=set)
    """The clients' tasks that were emptied."""

    def is_own(self, row: Any) -> bool:
        """Whether a row with a client, a cohort and an epoch is the leavers' own."""
        return row.client_id in self.client_ids and (not self.stays or self.was_with_them(row))

    def was_with_them(self, row: Any) -> bool:
        return bool(row.epoch <= self.last_epochs.get(row.cohort_id, -1))

    def is_mentioned(self, words: str) -> bool:
        return is_mentioned(self.names, words)


def is_mentioned(names: frozenset[str], words: str) -> bool:
    """Whether one of the names is there as a whole word: a name may be a part of another."""
    either = "|".join(map(re.escape, sorted(names)))
    return bool(names) and re.search(rf"(?<![\w.-])(?:{either})(?![\w-]|\.\w)", words) is not None
