"""signing in

Sessions of browsers, people who sign in with OpenID Connect, and links that hand a certificate over.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("credentials", sa.Column("subject", sa.String(length=600), nullable=True))
    is_persons = sa.text("subject IS NOT NULL AND revoked_at IS NULL")
    op.create_index(
        "uq_credentials_person",
        "credentials",
        ["subject", "federation_id", "role"],
        unique=True,
        postgresql_where=is_persons,
        sqlite_where=is_persons,
    )
    op.create_table(
        "browser_sessions",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("credential_id", sa.Uuid(), nullable=False),
        sa.Column("secret_hash", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ends_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["credential_id"], ["credentials.id"], name=op.f("fk_browser_sessions_credential_id_credentials")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_browser_sessions")),
    )
    op.create_index(op.f("ix_browser_sessions_credential_id"), "browser_sessions", ["credential_id"])
    op.create_table(
        "hand_overs",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("erasure_id", sa.Uuid(), nullable=False),
        sa.Column("secret_hash", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("opened_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["erasure_id"], ["erasures.id"], name=op.f("fk_hand_overs_erasure_id_erasures")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_hand_overs")),
    )
    op.create_index(op.f("ix_hand_overs_erasure_id"), "hand_overs", ["erasure_id"])


def downgrade() -> None:
    op.drop_table("hand_overs")
    op.drop_table("browser_sessions")
    op.drop_index("uq_credentials_person", table_name="credentials")
    op.drop_column("credentials", "subject")
