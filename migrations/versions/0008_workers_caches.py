"""workers' caches

Since when models that a client was given are superseded, and up to which fence its worker has dropped them.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("clients", sa.Column("superseded_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("clients", sa.Column("dropped_at", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    op.drop_column("clients", "dropped_at")
    op.drop_column("clients", "superseded_at")
