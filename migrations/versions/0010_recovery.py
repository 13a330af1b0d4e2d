"""recovery

The recovery method that a request to forget asks for.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    document = sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql")
    op.add_column("erasures", sa.Column("recovery", document, nullable=True))


def downgrade() -> None:
    op.drop_column("erasures", "recovery")
