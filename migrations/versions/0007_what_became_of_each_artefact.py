"""what became of each artefact

The kinds of certificates of the second version, and a disposition that is known before the certificate is signed. Salts
of requests that ended without a certificate are dropped; those of completed ones go when their openings are written.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

KINDS = (
    "kind IN ('update', 'history', 'checkpoint', 'merge', 'step', 'upload', 'part', 'credential', 'sealing-key', "
    "'log-tail', 'device', 'figure', 'canary', 'failure-reason', 'worker-cache')"
)
DISPOSITIONS = (
    "disposition IN ('deleted', 'destroyed', 'revoked', 'reduced', 'scrubbed', 'reported', 'unconfirmed', "
    "'also-held-by-another', 'also-held-as-operator-upload')"
)
FORMER_KINDS = "kind IN ('update', 'history', 'checkpoint', 'merge', 'blob', 'key', 'sealing-key')"


def _make_table(*further: sa.Column[str] | sa.CheckConstraint) -> None:
    op.create_table(
        "artefacts",
        sa.Column("erasure_id", sa.Uuid(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("digest", sa.String(length=71), nullable=False),
        *further,
        sa.ForeignKeyConstraint(["erasure_id"], ["erasures.id"], name=op.f("fk_artefacts_erasure_id_erasures")),
        sa.PrimaryKeyConstraint("erasure_id", "kind", "digest", name=op.f("pk_artefacts")),
    )


def upgrade() -> None:
    # SQLite cannot change a constraint: the rows wait in a table without any.
    op.execute("CREATE TABLE artefacts_waiting AS SELECT erasure_id, kind, digest FROM artefacts")
    op.drop_table("artefacts")
    _make_table(
        sa.Column("disposition", sa.String(length=32), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False, server_default=""),
        sa.CheckConstraint(KINDS, name=op.f("ck_artefacts_known_kind")),
        sa.CheckConstraint(DISPOSITIONS, name=op.f("ck_artefacts_known_disposition")),
    )
    op.execute(
        "INSERT INTO artefacts (erasure_id, kind, digest) SELECT erasure_id, CASE WHEN kind = 'key' THEN 'credential' "
        "WHEN kind = 'blob' AND EXISTS (SELECT 1 FROM jobs WHERE jobs.output = artefacts_waiting.digest) THEN 'step' "
        "WHEN kind = 'blob' THEN 'upload' ELSE kind END, digest FROM artefacts_waiting"
    )
    op.drop_table("artefacts_waiting")
    op.create_index(op.f("ix_artefacts_digest"), "artefacts", ["digest"])
    op.execute(
        "UPDATE erasures SET salt = '' WHERE status IN ('denied', 'cancelled', 'failed') "
        "OR (status = 'completed' AND duplicate_of IS NOT NULL)"
    )


def downgrade() -> None:
    op.execute("CREATE TABLE artefacts_waiting AS SELECT erasure_id, kind, digest FROM artefacts")
    op.drop_table("artefacts")
    _make_table(sa.CheckConstraint(FORMER_KINDS, name=op.f("ck_artefacts_known_kind")))
    op.execute(
        "INSERT INTO artefacts (erasure_id, kind, digest) SELECT DISTINCT erasure_id, CASE kind "
        "WHEN 'credential' THEN 'key' WHEN 'step' THEN 'blob' WHEN 'upload' THEN 'blob' ELSE kind END, digest "
        "FROM artefacts_waiting WHERE kind IN ('update', 'history', 'checkpoint', 'merge', 'step', 'upload', "
        "'credential', 'sealing-key')"
    )
    op.drop_table("artefacts_waiting")
