"""what a client may claim, and by what factor an update was scaled down"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("clients", sa.Column("max_samples", sa.BigInteger(), nullable=True))
    op.add_column("contributions", sa.Column("factor", sa.Float(), nullable=True))


def downgrade() -> None:
    op.drop_column("contributions", "factor")
    op.drop_column("clients", "max_samples")
