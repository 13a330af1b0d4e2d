"""what a restored database must not take back, and when cohorts were cut last

Digests that it learns from the lists beside the tombstones. Cohorts may be cut again after their fence.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "taint_lists",
        sa.Column("request_id", sa.Uuid(), nullable=False),
        sa.Column("num_bytes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("request_id", name=op.f("pk_taint_lists")),
    )
    op.create_table(
        "tainted",
        sa.Column("federation_id", sa.Uuid(), nullable=False),
        sa.Column("digest", sa.String(length=71), nullable=False),
        sa.Column("is_model", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["federation_id"], ["federations.id"], name=op.f("fk_tainted_federation_id_federations")
        ),
        sa.PrimaryKeyConstraint("federation_id", "digest", "is_model", name=op.f("pk_tainted")),
    )
    op.add_column("lines", sa.Column("cut_at", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    op.drop_column("lines", "cut_at")
    op.drop_table("tainted")
    op.drop_table("taint_lists")
