"""the log of acts

Who did what, when and from where: rows that commit with what they tell of, and the chain of each federation.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    op.create_table(
        "acts",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("federation_id", sa.Uuid(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("act", sa.String(length=40), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("about_kind", sa.String(length=16), nullable=True),
        sa.Column("about_id", sa.Uuid(), nullable=True),
        sa.Column("parts", JSON, nullable=False),
        sa.Column("gap", JSON, nullable=True),
        sa.Column("seq", sa.BigInteger(), nullable=True),
        sa.Column("digest", sa.String(length=71), nullable=True),
        sa.ForeignKeyConstraint(["federation_id"], ["federations.id"], name=op.f("fk_acts_federation_id_federations")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_acts")),
        sa.UniqueConstraint("federation_id", "seq", name=op.f("uq_acts_federation_id")),
    )
    op.create_index(op.f("ix_acts_about_id"), "acts", ["about_id"])
    unchained = sa.text("seq IS NULL")
    op.create_index(
        "ix_acts_unchained", "acts", ["federation_id", "id"], postgresql_where=unchained, sqlite_where=unchained
    )
    op.create_table(
        "act_chains",
        sa.Column("federation_id", sa.Uuid(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.String(length=71), nullable=False),
        sa.Column("kept_from", sa.BigInteger(), nullable=False),
        sa.Column("before", sa.String(length=71), nullable=False),
        sa.Column("head", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["federation_id"], ["federations.id"], name=op.f("fk_act_chains_federation_id_federations")
        ),
        sa.PrimaryKeyConstraint("federation_id", name=op.f("pk_act_chains")),
    )


def downgrade() -> None:
    op.drop_table("act_chains")
    op.drop_table("acts")
