"""four eyes

Who filed a request to forget, who decided it and why, its ground, its name elsewhere and the extension of its deadline;
which credential made which; and whether a federation demands that somebody else decides.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

JSON = sa.JSON().with_variant(JSONB(), "postgresql")
ADDED = {
    "ground": sa.String(length=20),
    "external_ref": sa.String(length=200),
    "filed_by": JSON,
    "ruling": JSON,
    "extension": JSON,
}


def upgrade() -> None:
    for name, kind in ADDED.items():
        op.add_column("erasures", sa.Column(name, kind, nullable=True))
    for name in ("needs_approval", "four_eyes"):
        op.add_column("erasures", sa.Column(name, sa.Boolean(), nullable=False, server_default=sa.false()))
    op.execute(sa.text("UPDATE erasures SET needs_approval = true WHERE status = 'awaiting_approval'"))
    op.add_column("credentials", sa.Column("created_by", sa.Uuid(), nullable=True))
    op.add_column("federations", sa.Column("four_eyes", sa.String(length=8), nullable=False, server_default="off"))


def downgrade() -> None:
    op.drop_column("federations", "four_eyes")
    op.drop_column("credentials", "created_by")
    for name in ("four_eyes", "needs_approval", *ADDED):
        op.drop_column("erasures", name)
