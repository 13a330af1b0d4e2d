"""who names a blob: indexes for the question"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    is_open, is_there = sa.text("status = 'open'"), sa.text("digest IS NOT NULL")
    op.create_index("ix_rounds_open_model", "rounds", ["model_digest"], postgresql_where=is_open, sqlite_where=is_open)
    op.create_index(
        "ix_contributions_digest", "contributions", ["digest"], postgresql_where=is_there, sqlite_where=is_there
    )
    op.create_index(op.f("ix_kept_updates_digest"), "kept_updates", ["digest"])


def downgrade() -> None:
    op.drop_index(op.f("ix_kept_updates_digest"), "kept_updates")
    op.drop_index("ix_contributions_digest", "contributions")
    op.drop_index("ix_rounds_open_model", "rounds")
