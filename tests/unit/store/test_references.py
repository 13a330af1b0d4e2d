"""Which rows name a blob: every column that can is known, and each of them keeps the blob."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa

from coordinator.store import references, schema
from coordinator.store import tables as t
from coordinator.store.database import Database
from coordinator.store.references import NAMED_BY, NAMES_NO_BLOB, Reference
from services.core import digests

pytestmark = pytest.mark.anyio
DIGEST, OTHER = digests.of_bytes(b"a blob"), digests.of_bytes(b"another")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
LENGTH_OF_A_DIGEST = len(DIGEST)
LIVE: dict[str, dict[str, Any]] = {
    "updates": {"stored": True},
    "checkpoints": {"stored": True},
    "kept_updates": {"status": "sealing"},
    "rounds": {"status": "open"},
    "tasks": {"status": "ready"},
    "jobs": {"status": "ready", "kind": "kernel"},
    "cohorts": {"phase": "asking"},
    "lines": {"done_at": None},
}
"""What a row must be like to need its blobs."""


def test_every_column_that_can_hold_a_digest_is_said_to_name_blobs_or_not() -> None:
    def may_hold_one(column: sa.Column[Any]) -> bool:
        length = getattr(column.type, "length", None)
        return isinstance(column.type, sa.JSON) or (isinstance(column.type, sa.String) and length == LENGTH_OF_A_DIGEST)

    columns = {column for table in t.metadata.tables.values() for column in table.columns}
    naming = {reference.column for reference in NAMED_BY}
    assert {str(c) for c in columns if may_hold_one(c)} == {str(c) for c in naming | set(NAMES_NO_BLOB)}, (
        "a new column that may hold the digest of a blob belongs in NAMED_BY or, with its reason, in NAMES_NO_BLOB"
    )
    assert not naming & set(NAMES_NO_BLOB)


@pytest.mark.parametrize("reference", NAMED_BY, ids=lambda reference: str(reference.column))
async def test_what_a_kernel_made_and_a_live_row_names_is_not_given_up(reference: Reference) -> None:
    database = Database("sqlite://", is_scratch=True)
    await schema.create(database)
    async with database.read() as connection:  # not a transaction: foreign keys can be switched off
        await connection.run_sync(_without_constraints)
        owner, stranger = await _federation(connection), await _federation(connection)
        for federation_id in (owner, stranger):
            for digest in (DIGEST, OTHER):
                for origin in ("job", "operator"):
                    given = {"id": uuid4(), "federation_id": federation_id, "origin": origin, "status": "stored"}
                    await _insert(connection, t.blobs, **given, digest=digest)
        await _name(connection, reference, owner)
        await references.release(connection, owner, [DIGEST, OTHER])
        assert await _given_up(connection) == [("job", owner, OTHER)]
        await references.release(connection, stranger, [DIGEST])
        assert ("job", stranger, DIGEST) in await _given_up(connection), "another federation's row counts"
    await database.close()


async def _name(connection: Any, reference: Reference, owner: UUID) -> None:
    """A row of the owner's that names the blob in this column and nowhere else."""
    (run_id,) = (await connection.execute(sa.select(t.runs.c.id).where(t.runs.c.federation_id == owner))).scalars()
    table, value = reference.column.table, DIGEST
    if isinstance(reference.column.type, sa.JSON):
        value = {"somewhere": [{"inside": DIGEST}]}  # type: ignore[assignment]
    if table is t.runs:
        await connection.execute(t.runs.update().where(t.runs.c.id == run_id).values(spec=value))
        return
    update_id = uuid4()
    if table is t.contributions:
        await _insert(connection, t.updates, id=update_id, run_id=run_id, stored=True)
    given = {"run_id": run_id, "federation_id": owner, "update_id": update_id, **LIVE.get(table.name, {})}
    own = {name: given[name] for name in given if name in table.c}
    await _insert(connection, table, **{**own, reference.column.name: value})


async def _given_up(connection: Any) -> list[tuple[str, UUID, str]]:
    b = t.blobs.c
    rows = await connection.execute(sa.select(b.origin, b.federation_id, b.digest).where(b.status == "dropping"))
    return [tuple(row) for row in rows]


async def _federation(connection: Any) -> UUID:
    federation_id = uuid4()
    await _insert(connection, t.federations, id=federation_id)
    await _insert(connection, t.runs, id=uuid4(), federation_id=federation_id)
    return federation_id


async def _insert(connection: Any, table: sa.Table, **given: Any) -> None:
    """A row with anything in the columns that need something."""
    row = {column.name: _anything(column) for column in table.columns if not column.nullable}
    await connection.execute(table.insert().values(**{**row, **given}))


def _anything(column: sa.Column[Any]) -> Any:
    kinds: list[tuple[type[Any], Any]] = [
        (sa.Uuid, uuid4()),
        (t.Instant, NOW),
        (sa.Boolean, False),
        (sa.String, uuid4().hex[:8]),
        (sa.JSON, {}),
    ]
    return next((value for kind, value in kinds if isinstance(column.type, kind)), 1)


def _without_constraints(connection: sa.Connection) -> None:
    connection.exec_driver_sql("PRAGMA ignore_check_constraints=ON")
    connection.exec_driver_sql("PRAGMA foreign_keys=OFF")
