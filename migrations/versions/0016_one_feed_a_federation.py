"""one feed a federation

The events of a federation's runs and requests in one order, what an update weighed, and indexes for what people look at.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

FAILED = sa.text("failure IS NOT NULL")


def upgrade() -> None:
    op.create_table(
        "feed_segments",
        sa.Column("federation_id", sa.Uuid(), nullable=False),
        sa.Column("first", sa.BigInteger(), nullable=False),
        sa.Column("journal_id", sa.Uuid(), nullable=False),
        sa.Column("is_request", sa.Boolean(), nullable=False),
        sa.Column("begins", sa.BigInteger(), nullable=False),
        sa.Column("ends", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("ends >= begins", name=op.f("ck_feed_segments_not_empty")),
        sa.ForeignKeyConstraint(
            ["federation_id"], ["federations.id"], name=op.f("fk_feed_segments_federation_id_federations")
        ),
        sa.PrimaryKeyConstraint("federation_id", "first", name=op.f("pk_feed_segments")),
        sa.UniqueConstraint("journal_id", "begins", name=op.f("uq_feed_segments_journal_id")),
    )
    op.add_column("erasure_log", sa.Column("run_id", sa.Uuid(), nullable=True))
    op.add_column("erasure_log", sa.Column("cohort_id", sa.Uuid(), nullable=True))
    op.add_column("updates", sa.Column("num_bytes", sa.BigInteger(), nullable=True))
    op.create_index("ix_tasks_of_client", "tasks", ["client_id", "run_id", "round"])
    op.create_index("ix_tasks_failed", "tasks", ["client_id"], postgresql_where=FAILED, sqlite_where=FAILED)


def downgrade() -> None:
    op.drop_index("ix_tasks_failed", "tasks")
    op.drop_index("ix_tasks_of_client", "tasks")
    op.drop_column("updates", "num_bytes")
    op.drop_column("erasure_log", "cohort_id")
    op.drop_column("erasure_log", "run_id")
    op.drop_table("feed_segments")
