"""stamps

What changes whenever rows of a cohort do, so that a process knows whether what it remembers of them is still so.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("cohorts", sa.Column("stamp", sa.Uuid(), nullable=True))
    op.add_column("cohorts", sa.Column("members_stamp", sa.Uuid(), nullable=True))


def downgrade() -> None:
    op.drop_column("cohorts", "members_stamp")
    op.drop_column("cohorts", "stamp")
