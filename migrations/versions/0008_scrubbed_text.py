"""scrubbed text and workers' caches

Since when models that a client was given are superseded, and up to which fence its worker has dropped them; kinds of
artefacts for what an erasure takes out of rows.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0006"
branch_labels = None
depends_on = None

_KINDS = ("update", "history", "checkpoint", "merge", "blob", "key", "sealing-key")
_SCRUBBED = ("log-tail", "device", "figure", "canary", "failure-reason")


def upgrade() -> None:
    op.add_column("clients", sa.Column("superseded_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("clients", sa.Column("dropped_at", sa.DateTime(timezone=True), nullable=True))
    _know(*_KINDS, *_SCRUBBED)


def downgrade() -> None:
    artefacts = sa.table("artefacts", sa.column("kind", sa.String()))
    op.execute(artefacts.delete().where(artefacts.c.kind.in_(_SCRUBBED)))
    _know(*_KINDS)
    op.drop_column("clients", "dropped_at")
    op.drop_column("clients", "superseded_at")


def _know(*kinds: str) -> None:
    with op.batch_alter_table("artefacts") as batch:
        batch.drop_constraint(op.f("ck_artefacts_known_kind"), type_="check")
        batch.create_check_constraint(op.f("ck_artefacts_known_kind"), f"kind IN ({_listed(*kinds)})")


def _listed(*kinds: str) -> str:
    return ", ".join(f"'{kind}'" for kind in kinds)
