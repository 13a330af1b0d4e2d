"""Transactions that are no messages to the shell: accounts, sessions, acts, links, announcements."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.store.database import Database
from coordinator.store.faults import RolledBack
from services.core.errors import InvariantBroken

log = structlog.get_logger()
ATTEMPTS: Final = 5
"""At a transaction that the database takes back."""
T = TypeVar("T")


async def transact(
    database: Database, work: Callable[[AsyncConnection], Awaitable[T]], *, is_durable: bool = True
) -> T:
    """One transaction, as of `Database.write`. `work` begins anew when the database takes the transaction back because
    it stood in another's way: it changes rows and nothing else. After any other fault it may not be known whether the
    transaction was committed, and the caller has to decide."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            async with database.write(is_durable=is_durable) as connection:
                return await work(connection)
        except RolledBack as error:
            if attempt == ATTEMPTS:
                raise
            log.warning("transaction.retried", attempt=attempt, error=str(error)[:300])
    raise InvariantBroken("unreachable")
