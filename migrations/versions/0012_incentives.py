"""incentives

How a federation divides its clients among jobs, the periods in which it did, and what clients earned and paid.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

JSON = sa.JSON().with_variant(JSONB(), "postgresql")
FORMER_KINDS = (
    "'update', 'history', 'checkpoint', 'merge', 'step', 'upload', 'part', 'credential', 'sealing-key', "
    "'log-tail', 'device', 'figure', 'canary', 'failure-reason', 'worker-cache'"
)
KINDS = f"{FORMER_KINDS}, 'ledger'"
DISPOSITIONS = (
    "disposition IN ('deleted', 'destroyed', 'revoked', 'reduced', 'scrubbed', 'reported', 'unconfirmed', "
    "'also-held-by-another', 'also-held-as-operator-upload')"
)


def upgrade() -> None:
    op.add_column("federations", sa.Column("allocation", sa.String(length=16), nullable=True))
    op.add_column("federations", sa.Column("incentives", JSON, nullable=True))
    op.add_column("clients", sa.Column("resources", JSON, nullable=True))
    op.add_column("cohorts", sa.Column("allotment", JSON, nullable=True))
    op.add_column("members", sa.Column("allotted", sa.Boolean(), nullable=False, server_default=sa.true()))
    op.add_column("erasures", sa.Column("reward", sa.Float(), nullable=True))
    op.create_table(
        "periods",
        sa.Column("federation_id", sa.Uuid(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("strategy", sa.String(length=16), nullable=False),
        sa.Column("begun_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("incentives", JSON, nullable=False),
        sa.Column("jobs", JSON, nullable=False),
        sa.Column("candidates", JSON, nullable=False),
        sa.Column("division", JSON, nullable=False),
        sa.ForeignKeyConstraint(
            ["federation_id"], ["federations.id"], name=op.f("fk_periods_federation_id_federations")
        ),
        sa.PrimaryKeyConstraint("federation_id", "number", name=op.f("pk_periods")),
    )
    op.create_table(
        "ledger",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("federation_id", sa.Uuid(), nullable=False),
        sa.Column("client_id", sa.Uuid(), nullable=False),
        sa.Column("client_name", sa.String(length=63), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("update_id", sa.Uuid(), nullable=False),
        sa.Column("kind", sa.String(length=8), nullable=False),
        sa.Column("period", sa.Integer(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("amounts", JSON, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("kind IN ('cost', 'reward')", name=op.f("ck_ledger_known_kind")),
        sa.ForeignKeyConstraint(
            ["federation_id"], ["federations.id"], name=op.f("fk_ledger_federation_id_federations")
        ),
        sa.ForeignKeyConstraint(["client_id"], ["clients.id"], name=op.f("fk_ledger_client_id_clients")),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_ledger_run_id_runs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ledger")),
        sa.UniqueConstraint("update_id", "kind", name=op.f("uq_ledger_update_id")),
    )
    op.create_index(op.f("ix_ledger_federation_id"), "ledger", ["federation_id"])
    op.create_index(op.f("ix_ledger_client_id"), "ledger", ["client_id"])
    _make_artefacts_anew(KINDS)


def downgrade() -> None:
    op.execute("DELETE FROM artefacts WHERE kind = 'ledger'")
    _make_artefacts_anew(FORMER_KINDS)
    op.drop_table("ledger")
    op.drop_table("periods")
    op.drop_column("erasures", "reward")
    op.drop_column("members", "allotted")
    op.drop_column("cohorts", "allotment")
    op.drop_column("clients", "resources")
    op.drop_column("federations", "incentives")
    op.drop_column("federations", "allocation")


def _make_artefacts_anew(kinds: str) -> None:
    """SQLite cannot change a constraint: the rows wait in a table without any."""
    op.execute("CREATE TABLE artefacts_waiting AS SELECT erasure_id, kind, digest, disposition, reason FROM artefacts")
    op.drop_table("artefacts")
    op.create_table(
        "artefacts",
        sa.Column("erasure_id", sa.Uuid(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("digest", sa.String(length=71), nullable=False),
        sa.Column("disposition", sa.String(length=32), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False, server_default=""),
        sa.CheckConstraint(f"kind IN ({kinds})", name=op.f("ck_artefacts_known_kind")),
        sa.CheckConstraint(DISPOSITIONS, name=op.f("ck_artefacts_known_disposition")),
        sa.ForeignKeyConstraint(["erasure_id"], ["erasures.id"], name=op.f("fk_artefacts_erasure_id_erasures")),
        sa.PrimaryKeyConstraint("erasure_id", "kind", "digest", name=op.f("pk_artefacts")),
    )
    op.execute(
        "INSERT INTO artefacts (erasure_id, kind, digest, disposition, reason) "
        "SELECT erasure_id, kind, digest, disposition, reason FROM artefacts_waiting"
    )
    op.drop_table("artefacts_waiting")
    op.create_index(op.f("ix_artefacts_digest"), "artefacts", ["digest"])
