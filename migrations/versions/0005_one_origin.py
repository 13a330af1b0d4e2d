"""bytes have one origin

One row for each origin of stored bytes, with the keys that they are sealed under. What is stored by now lies plain,
under its digest, once for all who have it: each of them gets a row. It is sealed when the coordinator runs again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any
from uuid import UUID, uuid4

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

AT_ONCE = 1000
_NOBODYS: dict[str, UUID | None] = {"origin_id": None, "client_id": None, "cohort_id": None, "epoch": None}


def upgrade() -> None:
    _drop_unfinished_uploads()
    op.rename_table("blobs", "blobs_before")
    if op.get_bind().dialect.name == "postgresql":
        op.execute("ALTER TABLE blobs_before RENAME CONSTRAINT pk_blobs TO pk_blobs_before")
        op.execute("ALTER TABLE blobs_before RENAME CONSTRAINT fk_blobs_federation_id_federations TO fk_blobs_before_a")
        op.execute("ALTER TABLE blobs_before DROP CONSTRAINT fk_blobs_uploaded_by_clients")
    blobs = _create()
    before = sa.Table("blobs_before", sa.MetaData(), autoload_with=op.get_bind())
    bind = op.get_bind()
    for rows in _lots(bind.execute(sa.select(before)).mappings().all()):
        new = [row for one in rows for row in _rows_of(bind, one)]
        if new:
            bind.execute(blobs.insert(), new)
    op.drop_table("blobs_before")


def _create() -> sa.Table:
    unsettled, of_task = sa.text("status <> 'stored'"), sa.text("origin = 'task' AND status <> 'dropping'")
    of_operator = sa.text("origin = 'operator' AND status <> 'dropping'")
    blobs = op.create_table(
        "blobs",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("federation_id", sa.Uuid(), nullable=False),
        sa.Column("origin", sa.String(length=8), nullable=False),
        sa.Column("origin_id", sa.Uuid(), nullable=True),
        sa.Column("client_id", sa.Uuid(), nullable=True),
        sa.Column("cohort_id", sa.Uuid(), nullable=True),
        sa.Column("epoch", sa.Integer(), nullable=True),
        sa.Column("digest", sa.String(length=71), nullable=True),
        sa.Column("num_bytes", sa.BigInteger(), nullable=False),
        sa.Column("layout_digest", sa.String(length=71), nullable=True),
        sa.Column("updatable_digest", sa.String(length=71), nullable=True),
        sa.Column("finite", sa.Boolean(), nullable=True),
        sa.Column("status", sa.String(length=10), nullable=False),
        sa.Column("key_name", sa.String(length=100), nullable=True),
        sa.Column("client_key_name", sa.String(length=100), nullable=True),
        sa.Column("data_key", sa.LargeBinary(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("origin IN ('task', 'job', 'operator', 'copy')", name=op.f("ck_blobs_known_origin")),
        sa.CheckConstraint("status IN ('arriving', 'stored', 'dropping')", name=op.f("ck_blobs_known_status")),
        sa.CheckConstraint("status <> 'stored' OR digest IS NOT NULL", name=op.f("ck_blobs_known_when_stored")),
        sa.CheckConstraint("data_key IS NULL OR key_name IS NOT NULL", name=op.f("ck_blobs_key_named")),
        sa.ForeignKeyConstraint(["federation_id"], ["federations.id"], name=op.f("fk_blobs_federation_id_federations")),
        sa.ForeignKeyConstraint(["client_id"], ["clients.id"], name=op.f("fk_blobs_client_id_clients")),
        sa.ForeignKeyConstraint(["cohort_id"], ["cohorts.id"], name=op.f("fk_blobs_cohort_id_cohorts")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_blobs")),
    )
    for column in ("origin_id", "client_id", "cohort_id", "key_name"):
        op.create_index(op.f(f"ix_blobs_{column}"), "blobs", [column])
    op.create_index("ix_blobs_digest", "blobs", ["federation_id", "digest"])
    op.create_index("ix_blobs_unsettled", "blobs", ["created_at"], postgresql_where=unsettled, sqlite_where=unsettled)
    op.create_index(
        "uq_blobs_of_task",
        "blobs",
        ["origin_id", "digest"],
        unique=True,
        postgresql_where=of_task,
        sqlite_where=of_task,
    )
    op.create_index(
        "uq_blobs_of_operator",
        "blobs",
        ["federation_id", "digest"],
        unique=True,
        postgresql_where=of_operator,
        sqlite_where=of_operator,
    )
    return blobs


def _drop_unfinished_uploads() -> None:
    """Whoever sends them begins again. From now on the row of a blob says whether all of it is there."""
    op.drop_index("blob_contents_one_part", "blob_contents")
    op.drop_index("blob_contents_one_blob", "blob_contents")
    op.execute(sa.text("DELETE FROM blob_chunks WHERE content_id IN (SELECT id FROM blob_contents WHERE NOT complete)"))
    op.execute(sa.text("DELETE FROM blob_contents WHERE NOT complete"))
    with op.batch_alter_table("blob_contents") as table:
        table.drop_column("sender")
        table.drop_column("complete")
        table.alter_column("digest", new_column_name="name")
    op.execute(sa.text("UPDATE blob_contents SET name = substr(name, 8) WHERE name LIKE 'sha256:%'"))
    op.create_index("blob_contents_one_name", "blob_contents", ["owner", "name"], unique=True)


def _lots(rows: Iterable[Any]) -> Iterator[list[Any]]:
    lot: list[Any] = []
    for row in rows:
        lot.append(row)
        if len(lot) == AT_ONCE:
            yield lot
            lot = []
    if lot:
        yield lot


def _rows_of(bind: sa.Connection, one: Any) -> Iterator[dict[str, Any]]:
    """One for each who has these bytes."""
    plain = {
        "federation_id": one["federation_id"],
        "digest": one["digest"],
        "num_bytes": one["num_bytes"],
        "layout_digest": one["layout_digest"],
        "updatable_digest": one["updatable_digest"],
        "finite": one["finite"],
        "status": "stored",
        "key_name": None,
        "client_key_name": None,
        "data_key": None,
        "created_at": one["created_at"],
    }
    is_known = False
    for origin, statement in _ORIGINS.items():
        named = {"digest": one["digest"], "owner": one["federation_id"]}
        for row in bind.execute(statement, named).mappings():
            is_known = True
            yield {**plain, "id": uuid4(), "origin": origin, **row}
    is_named = bind.execute(_NAMED, {"owner": one["federation_id"], "pattern": f"%{one['digest']}%"}).first()
    if is_named is not None or (not is_known and one["uploaded_by"] is None):
        yield {**plain, "id": uuid4(), "origin": "operator", **_NOBODYS}
    elif not is_known:  # a client's upload that was never submitted
        yield {**plain, "id": uuid4(), "origin": "task", **_NOBODYS, "client_id": one["uploaded_by"]}


def _found(text: str) -> sa.TextualSelect:
    of_federation = sa.text(text).bindparams(sa.bindparam("digest"), sa.bindparam("owner", type_=sa.Uuid()))
    return of_federation.columns(origin_id=sa.Uuid(), client_id=sa.Uuid(), cohort_id=sa.Uuid(), epoch=sa.Integer())


_ORIGINS = {
    "task": _found(
        "SELECT u.task_id AS origin_id, u.client_id AS client_id, u.cohort_id AS cohort_id, u.epoch AS epoch "
        "FROM updates u JOIN runs r ON r.id = u.run_id "
        "WHERE u.digest = :digest AND r.federation_id = :owner AND u.stored"
    ),
    "job": _found(
        "SELECT j.id AS origin_id, NULL AS client_id, j.cohort_id AS cohort_id, j.epoch AS epoch "
        "FROM jobs j WHERE j.output = :digest AND j.federation_id = :owner"
    ),
    "copy": _found(
        "SELECT k.update_id AS origin_id, k.client_id AS client_id, k.cohort_id AS cohort_id, u.epoch AS epoch "
        "FROM kept_updates k JOIN updates u ON u.id = k.update_id JOIN runs r ON r.id = k.run_id "
        "WHERE k.digest = :digest AND r.federation_id = :owner AND k.status <> 'dropped'"
    ),
}
_NAMED = sa.text(
    "SELECT id FROM runs WHERE federation_id = :owner AND CAST(spec AS TEXT) LIKE :pattern LIMIT 1"
).bindparams(sa.bindparam("owner", type_=sa.Uuid()))


def downgrade() -> None:
    raise NotImplementedError("sealed blobs cannot be read by an older version; restore a backup instead")
