"""bytes have one origin

One row for each origin of stored bytes, with the keys that they are sealed under. What is stored by now lies plain,
under its digest, once for all who have it: each of them gets a row. It is sealed when the coordinator runs again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

AT_ONCE: Final = 1000
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


def upgrade() -> None:
    _drop_unfinished_uploads()
    op.rename_table("blobs", "blobs_before")
    if op.get_bind().dialect.name == "postgresql":
        op.execute("ALTER TABLE blobs_before RENAME CONSTRAINT pk_blobs TO pk_blobs_before")
        op.execute("ALTER TABLE blobs_before RENAME CONSTRAINT fk_blobs_federation_id_federations TO fk_blobs_before_a")
        op.execute("ALTER TABLE blobs_before DROP CONSTRAINT fk_blobs_uploaded_by_clients")
    _create()
    _fill()
    op.drop_table("blobs_before")


def _create() -> None:
    unsettled, is_own = sa.text("status <> 'stored'"), "status <> 'dropping' AND data_key IS NOT NULL"
    plain = sa.text("data_key IS NULL")
    of_task, of_operator = sa.text(f"origin = 'task' AND {is_own}"), sa.text(f"origin = 'operator' AND {is_own}")
    op.create_table(
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
    op.create_index("ix_blobs_plain", "blobs", ["id"], postgresql_where=plain, sqlite_where=plain)
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


def _fill() -> None:
    """A row for each who has the bytes, in one statement for each kind of origin."""
    bind = op.get_bind()
    of_run = "JOIN runs r ON r.id = {0}.run_id JOIN blobs_before b ON b.federation_id = r.federation_id"
    of_update = f"FROM updates u {of_run.format('u')} AND b.digest = u.digest WHERE u.stored"
    of_job = "FROM jobs j JOIN blobs_before b ON b.federation_id = j.federation_id AND b.digest = j.output"
    of_copy = f"FROM kept_updates k JOIN updates u ON u.id = k.update_id {of_run.format('k')} AND b.digest = k.digest"
    bind.execute(_insert("'task'", "u.task_id", "u.client_id", "u.cohort_id", "u.epoch", of_update))
    bind.execute(_insert("'job'", "j.id", "NULL", "j.cohort_id", "j.epoch", of_job))
    is_kept = "WHERE k.status <> 'dropped'"
    bind.execute(_insert("'copy'", "k.update_id", "k.client_id", "k.cohort_id", "u.epoch", f"{of_copy} {is_kept}"))
    for some in _named_by_runs(bind):
        by_name = "FROM blobs_before b WHERE b.federation_id = :owner AND b.digest = :digest"
        bind.execute(_insert("'operator'", "NULL", "NULL", "NULL", "NULL", by_name), some)
    # What is left is nobody's, or a client sent it and never submitted it.
    unknown = "NOT EXISTS (SELECT 1 FROM blobs n WHERE n.federation_id = b.federation_id AND n.digest = b.digest)"
    whose = "CASE WHEN b.uploaded_by IS NULL THEN 'operator' ELSE 'task' END"
    bind.execute(_insert(whose, "NULL", "b.uploaded_by", "NULL", "NULL", f"FROM blobs_before b WHERE {unknown}"))


def _named_by_runs(bind: sa.Connection) -> Iterator[list[dict[str, Any]]]:
    """What specifications of runs name, some at a time: the initial model, data to validate with."""
    named: set[tuple[Any, str]] = set()
    for run in bind.execute(sa.text("SELECT federation_id, CAST(spec AS TEXT) AS spec FROM runs")):
        named |= {(run.federation_id, digest) for digest in _DIGEST.findall(run.spec)}
    rows = [{"owner": owner, "digest": digest} for owner, digest in sorted(named, key=str)]
    for start in range(0, len(rows), AT_ONCE):
        yield rows[start : start + AT_ONCE]


def _insert(origin: str, origin_id: str, client_id: str, cohort_id: str, epoch: str, found: str) -> sa.TextClause:
    """Of rows of `blobs_before`, called b."""
    is_postgres = op.get_bind().dialect.name == "postgresql"
    new_id = "gen_random_uuid()" if is_postgres else "lower(hex(randomblob(16)))"
    none = "CAST(NULL AS UUID)" if is_postgres else "NULL"
    origin_id, client_id, cohort_id = (none if name == "NULL" else name for name in (origin_id, client_id, cohort_id))
    return sa.text(
        "INSERT INTO blobs (id, federation_id, origin, origin_id, client_id, cohort_id, epoch, digest, num_bytes, "
        "layout_digest, updatable_digest, finite, status, created_at) "
        f"SELECT {new_id}, b.federation_id, {origin}, {origin_id}, {client_id}, {cohort_id}, CAST({epoch} AS INTEGER), b.digest, "
        f"b.num_bytes, b.layout_digest, b.updatable_digest, b.finite, 'stored', b.created_at {found}"
    )


def downgrade() -> None:
    raise NotImplementedError("sealed blobs cannot be read by an older version; restore a backup instead")
