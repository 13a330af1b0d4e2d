"""The journal of runs and the logs of requests: what is remembered of events, numbered without gaps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.engine.journal import Entry
from coordinator.store import tables as t
from coordinator.store.prepared import prepared

_heads, _log = t.journal_heads, t.erasure_log
_BUMP = prepared(
    _heads.update()
    .where(_heads.c.run_id == sa.bindparam("run"))
    .values(seq=_heads.c.seq + sa.bindparam("count", type_=sa.Integer))
    .returning(_heads.c.seq)
)
_WRITE = prepared(t.journal.insert())


async def write(connection: AsyncConnection, entries: Sequence[Entry], now: datetime) -> None:
    """Number the entries and write each to the journal of its run and to the log of its request."""
    for one in entries:
        if one.erasure_id is not None:
            await _write_to_log(connection, one.erasure_id, one, now)
    of_runs = [(one.run_id, one) for one in entries if one.run_id is not None]
    counts = Counter(run_id for run_id, _ in of_runs)
    last = {run_id: await _reserve(connection, run_id, counts[run_id]) - counts[run_id] for run_id in sorted(counts)}
    rows = []
    for run_id, one in of_runs:
        last[run_id] += 1
        seq = last[run_id]
        row = {"run_id": run_id, "seq": seq, "cohort_id": one.cohort_id, "at": now, "type": one.type, "data": one.data}
        rows.append(row)
    if rows:
        await connection.execute(_WRITE, rows)


async def _reserve(connection: AsyncConnection, run_id: UUID, count: int) -> int:
    """Take the next `count` journal numbers of a run; the row stays locked until the commit. Returns the last one."""
    last = (await connection.execute(_BUMP, {"run": run_id, "count": count})).scalar_one_or_none()
    if last is None:
        await connection.execute(_heads.insert().values(run_id=run_id, seq=count))
        return count
    return int(last)


async def _write_to_log(connection: AsyncConnection, erasure_id: UUID, one: Entry, now: datetime) -> None:
    """The request's row is locked by this transaction, so nobody else takes the number."""
    newest = await connection.execute(sa.select(sa.func.max(_log.c.seq)).where(_log.c.erasure_id == erasure_id))
    seq = int(newest.scalar_one_or_none() or 0) + 1
    row = {"erasure_id": erasure_id, "seq": seq, "at": now, "type": one.type, "data": one.data}
    row |= {"run_id": one.run_id, "cohort_id": one.cohort_id}
    await connection.execute(_log.insert().values(row))
