"""evidence

How far the log of tombstones is known to be fenced here, the public keys of this installation's certificates, and what
its operators had to confirm. A database without a position is compared with the whole log once.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "evidence_state",
        sa.Column("id", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("num_tombstones", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.String(length=71), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_evidence_state_only_one")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_evidence_state")),
    )
    op.create_table(
        "signing_keys",
        sa.Column("number", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("key_id", sa.String(length=71), nullable=False),
        sa.Column("public_key", sa.Text(), nullable=False),
        sa.Column("recorded_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_signing_keys")),
        sa.UniqueConstraint("key_id", name=op.f("uq_signing_keys_key_id")),
    )
    op.create_table(
        "incidents",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("explanation", sa.Text(), nullable=False),
        sa.Column("reported_by", sa.String(length=80), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_incidents")),
    )


def downgrade() -> None:
    op.drop_table("incidents")
    op.drop_table("signing_keys")
    op.drop_table("evidence_state")
