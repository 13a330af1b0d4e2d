"""A worker's word that superseded models are no longer in its cache."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from coordinator.runtime.transactions import transact
from coordinator.store import worker_caches
from coordinator.store.database import Database


async def note_dropped(database: Database, client_id: UUID, through: datetime) -> None:
    """If it gets lost, the worker is told again and says it again."""
    await transact(
        database, lambda connection: worker_caches.note_dropped(connection, client_id, through), is_durable=False
    )
