"""selection

What a cohort's selection policy knows of its clients, where it knows more than their names.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "cohorts", sa.Column("selection", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=True)
    )


def downgrade() -> None:
    op.drop_column("cohorts", "selection")
