"""the trunk"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:

    op.create_table(
        "federations",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_federations")),
        sa.UniqueConstraint("name", name=op.f("uq_federations_name")),
    )
    op.create_table(
        "inbox",
        sa.Column("principal", sa.String(length=80), nullable=False),
        sa.Column("route", sa.String(length=80), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("fingerprint", sa.String(length=71), nullable=False),
        sa.Column("made", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("principal", "route", "key", name=op.f("pk_inbox")),
    )
    op.create_table(
        "clients",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("federation_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_seen_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("agent_version", sa.String(length=100), nullable=True),
        sa.Column(
            "devices", sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"), nullable=False
        ),
        sa.Column("exclusions", sa.String(length=71), nullable=True),
        sa.Column("exclusions_acked", sa.String(length=71), nullable=True),
        sa.Column("needed_by", sa.Uuid(), nullable=True),
        sa.Column(
            "canary", sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"), nullable=True
        ),
        sa.CheckConstraint("status IN ('active', 'removed', 'erased')", name=op.f("ck_clients_known_status")),
        sa.ForeignKeyConstraint(
            ["federation_id"], ["federations.id"], name=op.f("fk_clients_federation_id_federations")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_clients")),
        sa.UniqueConstraint("federation_id", "name", name=op.f("uq_clients_federation_id")),
    )
    op.create_table(
        "erasures",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("federation_id", sa.Uuid(), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("scope", sa.String(length=16), nullable=False),
        sa.Column(
            "samples", sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"), nullable=False
        ),
        sa.Column("method", sa.String(length=40), nullable=False),
        sa.Column("guarantee", sa.String(length=16), nullable=False),
        sa.Column("regulation", sa.String(length=100), nullable=False),
        sa.Column("requested_by", sa.String(length=80), nullable=False),
        sa.Column("salt", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("legal_deadline", sa.DateTime(timezone=True), nullable=False),
        sa.Column(
            "params", sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"), nullable=False
        ),
        sa.Column("recovery_rounds", sa.Integer(), nullable=True),
        sa.Column("fallback", sa.String(length=16), nullable=True),
        sa.Column(
            "audit", sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"), nullable=True
        ),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("duplicate_of", sa.Uuid(), nullable=True),
        sa.Column(
            "callbacks", sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"), nullable=False
        ),
        sa.Column("chosen", sa.String(length=40), nullable=True),
        sa.Column("fenced_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("first_clean_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("completed_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("guarantee IN ('exact', 'approximate')", name=op.f("ck_erasures_known_guarantee")),
        sa.CheckConstraint("scope IN ('client', 'samples')", name=op.f("ck_erasures_known_scope")),
        sa.CheckConstraint(
            "status IN ('received', 'awaiting_approval', 'fenced', 'executing', 'verifying', 'completed', 'denied', 'cancelled', 'failed', 'requires_action')",
            name=op.f("ck_erasures_known_status"),
        ),
        sa.ForeignKeyConstraint(["duplicate_of"], ["erasures.id"], name=op.f("fk_erasures_duplicate_of_erasures")),
        sa.ForeignKeyConstraint(
            ["federation_id"], ["federations.id"], name=op.f("fk_erasures_federation_id_federations")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_erasures")),
    )
    op.create_index(op.f("ix_erasures_duplicate_of"), "erasures", ["duplicate_of"], unique=False)
    op.create_index(op.f("ix_erasures_federation_id"), "erasures", ["federation_id"], unique=False)
    op.create_index(
        "ix_erasures_open",
        "erasures",
        ["created_at"],
        unique=False,
        postgresql_where=sa.text("status IN ('fenced', 'executing', 'requires_action')"),
        sqlite_where=sa.text("status IN ('fenced', 'executing', 'requires_action')"),
    )

    op.create_table(
        "runs",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("federation_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column(
            "spec", sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"), nullable=False
        ),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("num_clients", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("hold", sa.String(length=16), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("(status = 'paused') = (hold IS NOT NULL)", name=op.f("ck_runs_hold_while_paused")),
        sa.CheckConstraint(
            "(status IN ('completed', 'failed', 'cancelled')) = (ended_at IS NOT NULL)",
            name=op.f("ck_runs_end_when_ended"),
        ),
        sa.CheckConstraint(
            "status IN ('running', 'paused', 'completed', 'failed', 'cancelled')", name=op.f("ck_runs_known_status")
        ),
        sa.ForeignKeyConstraint(["federation_id"], ["federations.id"], name=op.f("fk_runs_federation_id_federations")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
    )
    op.create_index(op.f("ix_runs_federation_id"), "runs", ["federation_id"], unique=False)

    op.create_table(
        "blobs",
        sa.Column("federation_id", sa.Uuid(), nullable=False),
        sa.Column("digest", sa.String(length=71), nullable=False),
        sa.Column("num_bytes", sa.BigInteger(), nullable=False),
        sa.Column("layout_digest", sa.String(length=71), nullable=False),
        sa.Column("updatable_digest", sa.String(length=71), nullable=False),
        sa.Column("finite", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("uploaded_by", sa.Uuid(), nullable=True),
        sa.ForeignKeyConstraint(["federation_id"], ["federations.id"], name=op.f("fk_blobs_federation_id_federations")),
        sa.ForeignKeyConstraint(["uploaded_by"], ["clients.id"], name=op.f("fk_blobs_uploaded_by_clients")),
        sa.PrimaryKeyConstraint("federation_id", "digest", name=op.f("pk_blobs")),
    )
    op.create_table(
        "artefacts",
        sa.Column("erasure_id", sa.Uuid(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("digest", sa.String(length=71), nullable=False),
        sa.CheckConstraint(
            "kind IN ('update', 'history', 'checkpoint', 'merge', 'blob', 'key', 'sealing-key')",
            name=op.f("ck_artefacts_known_kind"),
        ),
        sa.ForeignKeyConstraint(["erasure_id"], ["erasures.id"], name=op.f("fk_artefacts_erasure_id_erasures")),
        sa.PrimaryKeyConstraint("erasure_id", "kind", "digest", name=op.f("pk_artefacts")),
    )
    op.create_table(
        "certificates",
        sa.Column("erasure_id", sa.Uuid(), nullable=False),
        sa.Column("envelope", sa.Text(), nullable=False),
        sa.Column("issued_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["erasure_id"], ["erasures.id"], name=op.f("fk_certificates_erasure_id_erasures")),
        sa.PrimaryKeyConstraint("erasure_id", name=op.f("pk_certificates")),
    )
    op.create_table(
        "cohorts",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("phase", sa.String(length=16), nullable=False),
        sa.Column("program", sa.String(length=40), nullable=False),
        sa.Column("num_members", sa.Integer(), nullable=False),
        sa.Column("num_clients_of_run", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("parent_id", sa.Uuid(), nullable=True),
        sa.Column("group", sa.String(length=200), nullable=False),
        sa.Column("is_lockstep", sa.Boolean(), nullable=False),
        sa.Column(
            "pending", sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"), nullable=True
        ),
        sa.Column("extra_rounds", sa.Integer(), nullable=False),
        sa.Column(
            "recovery", sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"), nullable=True
        ),
        sa.Column(
            "unlearning", sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"), nullable=True
        ),
        sa.Column("residuals", sa.String(length=71), nullable=True),
        sa.Column(
            "program_state",
            sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"),
            nullable=True,
        ),
        sa.Column("awaiting", sa.Uuid(), nullable=True),
        sa.Column("stream_round_id", sa.Uuid(), nullable=True),
        sa.Column("num_buffered", sa.Integer(), nullable=False),
        sa.Column("head_id", sa.Uuid(), nullable=True),
        sa.Column("head_digest", sa.String(length=71), nullable=True),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "kind IN ('line', 'root', 'inner', 'leaf', 'profile', 'merge')", name=op.f("ck_cohorts_known_kind")
        ),
        sa.CheckConstraint(
            "phase IN ('starting', 'waiting', 'asking', 'computing', 'finished', 'failed', 'retired')",
            name=op.f("ck_cohorts_known_phase"),
        ),
        sa.CheckConstraint("(head_id IS NULL) = (head_digest IS NULL)", name=op.f("ck_cohorts_whole_head")),
        sa.CheckConstraint("num_buffered >= 0", name=op.f("ck_cohorts_buffered_count")),
        sa.ForeignKeyConstraint(["parent_id"], ["cohorts.id"], name=op.f("fk_cohorts_parent_id_cohorts")),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_cohorts_run_id_runs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_cohorts")),
        sa.UniqueConstraint("run_id", "name", name=op.f("uq_cohorts_run_id")),
    )
    op.create_table(
        "credentials",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("federation_id", sa.Uuid(), nullable=True),
        sa.Column("client_id", sa.Uuid(), nullable=True),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("label", sa.String(length=100), nullable=False),
        sa.Column("secret_hash", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("(role = 'client') = (client_id IS NOT NULL)", name=op.f("ck_credentials_client_role")),
        sa.CheckConstraint(
            "role IN ('client', 'viewer', 'operator', 'compliance', 'admin')", name=op.f("ck_credentials_known_role")
        ),
        sa.ForeignKeyConstraint(["client_id"], ["clients.id"], name=op.f("fk_credentials_client_id_clients")),
        sa.ForeignKeyConstraint(
            ["federation_id"], ["federations.id"], name=op.f("fk_credentials_federation_id_federations")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_credentials")),
    )
    op.create_index(op.f("ix_credentials_client_id"), "credentials", ["client_id"], unique=False)
    op.create_index(op.f("ix_credentials_federation_id"), "credentials", ["federation_id"], unique=False)

    op.create_table(
        "deliveries",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("erasure_id", sa.Uuid(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("callback", sa.Integer(), nullable=False),
        sa.Column("url", sa.String(length=2000), nullable=False),
        sa.Column("type", sa.String(length=40), nullable=False),
        sa.Column(
            "payload", sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"), nullable=False
        ),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_attempt_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("delivered_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.CheckConstraint("status IN ('pending', 'delivered', 'failed')", name=op.f("ck_deliveries_known_status")),
        sa.ForeignKeyConstraint(["erasure_id"], ["erasures.id"], name=op.f("fk_deliveries_erasure_id_erasures")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deliveries")),
        sa.UniqueConstraint("erasure_id", "seq", "callback", name=op.f("uq_deliveries_erasure_id")),
    )

    op.create_table(
        "erasure_log",
        sa.Column("erasure_id", sa.Uuid(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("type", sa.String(length=40), nullable=False),
        sa.Column(
            "data", sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"), nullable=False
        ),
        sa.ForeignKeyConstraint(["erasure_id"], ["erasures.id"], name=op.f("fk_erasure_log_erasure_id_erasures")),
        sa.PrimaryKeyConstraint("erasure_id", "seq", name=op.f("pk_erasure_log")),
    )
    op.create_table(
        "exclusions",
        sa.Column("erasure_id", sa.Uuid(), nullable=False),
        sa.Column("client_id", sa.Uuid(), nullable=False),
        sa.Column("client_name", sa.String(length=63), nullable=False),
        sa.Column(
            "samples", sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"), nullable=False
        ),
        sa.Column("ordered_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("acked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column(
            "unknown", sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"), nullable=False
        ),
        sa.Column("problem", sa.Text(), nullable=True),
        sa.CheckConstraint("acked_at IS NULL OR problem IS NULL", name=op.f("ck_exclusions_honoured")),
        sa.ForeignKeyConstraint(["client_id"], ["clients.id"], name=op.f("fk_exclusions_client_id_clients")),
        sa.ForeignKeyConstraint(["erasure_id"], ["erasures.id"], name=op.f("fk_exclusions_erasure_id_erasures")),
        sa.PrimaryKeyConstraint("erasure_id", "client_id", name=op.f("pk_exclusions")),
    )
    op.create_index(op.f("ix_exclusions_client_id"), "exclusions", ["client_id"], unique=False)

    op.create_table(
        "journal",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("cohort_id", sa.Uuid(), nullable=True),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("type", sa.String(length=40), nullable=False),
        sa.Column(
            "data", sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"), nullable=False
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_journal_run_id_runs")),
        sa.PrimaryKeyConstraint("run_id", "seq", name=op.f("pk_journal")),
    )
    op.create_table(
        "journal_heads",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_journal_heads_run_id_runs")),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_journal_heads")),
    )
    op.create_table(
        "subjects",
        sa.Column("erasure_id", sa.Uuid(), nullable=False),
        sa.Column("client_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("active", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["client_id"], ["clients.id"], name=op.f("fk_subjects_client_id_clients")),
        sa.ForeignKeyConstraint(["erasure_id"], ["erasures.id"], name=op.f("fk_subjects_erasure_id_erasures")),
        sa.PrimaryKeyConstraint("erasure_id", "client_id", name=op.f("pk_subjects")),
    )
    op.create_index(
        "uq_subjects_one_active",
        "subjects",
        ["client_id"],
        unique=True,
        postgresql_where=sa.text("active"),
        sqlite_where=sa.text("active"),
    )

    op.create_table(
        "checkpoints",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("cohort_id", sa.Uuid(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("digest", sa.String(length=71), nullable=False),
        sa.Column("base_id", sa.Uuid(), nullable=True),
        sa.Column("scale", sa.Float(), nullable=False),
        sa.Column(
            "metrics", sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"), nullable=False
        ),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("superseded_by", sa.Uuid(), nullable=True),
        sa.Column("stored", sa.Boolean(), nullable=False),
        sa.Column(
            "forgets", sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"), nullable=False
        ),
        sa.CheckConstraint(
            "(kind IN ('aggregate', 'forgotten')) = (base_id IS NOT NULL)", name=op.f("ck_checkpoints_based")
        ),
        sa.CheckConstraint(
            "kind IN ('init', 'aggregate', 'reinit', 'merge', 'forgotten')", name=op.f("ck_checkpoints_known_kind")
        ),
        sa.ForeignKeyConstraint(["base_id"], ["checkpoints.id"], name=op.f("fk_checkpoints_base_id_checkpoints")),
        sa.ForeignKeyConstraint(["cohort_id"], ["cohorts.id"], name=op.f("fk_checkpoints_cohort_id_cohorts")),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_checkpoints_run_id_runs")),
        sa.ForeignKeyConstraint(["superseded_by"], ["erasures.id"], name=op.f("fk_checkpoints_superseded_by_erasures")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_checkpoints")),
        sa.UniqueConstraint("cohort_id", "epoch", "round", name=op.f("uq_checkpoints_cohort_id")),
    )
    op.create_index(op.f("ix_checkpoints_digest"), "checkpoints", ["digest"], unique=False)
    op.create_index(op.f("ix_checkpoints_run_id"), "checkpoints", ["run_id"], unique=False)

    op.create_table(
        "jobs",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=True),
        sa.Column("cohort_id", sa.Uuid(), nullable=True),
        sa.Column("federation_id", sa.Uuid(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("kernel", sa.String(length=40), nullable=True),
        sa.Column(
            "params", sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"), nullable=False
        ),
        sa.Column(
            "inputs", sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"), nullable=False
        ),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("lease_token", sa.String(length=64), nullable=True),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("num_failures", sa.Integer(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("output", sa.String(length=71), nullable=True),
        sa.CheckConstraint("(kind = 'kernel') = (kernel IS NOT NULL)", name=op.f("ck_jobs_kernel_named")),
        sa.CheckConstraint(
            "status IN ('ready', 'leased', 'done', 'failed', 'cancelled')", name=op.f("ck_jobs_known_status")
        ),
        sa.ForeignKeyConstraint(["cohort_id"], ["cohorts.id"], name=op.f("fk_jobs_cohort_id_cohorts")),
        sa.ForeignKeyConstraint(["federation_id"], ["federations.id"], name=op.f("fk_jobs_federation_id_federations")),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_jobs_run_id_runs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    op.create_index(op.f("ix_jobs_cohort_id"), "jobs", ["cohort_id"], unique=False)
    op.create_index(
        "ix_jobs_open",
        "jobs",
        ["created_at"],
        unique=False,
        postgresql_where=sa.text("status IN ('ready', 'leased')"),
        sqlite_where=sa.text("status IN ('ready', 'leased')"),
    )
    op.create_index(op.f("ix_jobs_run_id"), "jobs", ["run_id"], unique=False)

    op.create_table(
        "lines",
        sa.Column("erasure_id", sa.Uuid(), nullable=False),
        sa.Column("cohort_id", sa.Uuid(), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("cohort_name", sa.String(length=200), nullable=False),
        sa.Column("action", sa.String(length=16), nullable=False),
        sa.Column("epoch_before", sa.Integer(), nullable=False),
        sa.Column("epoch_after", sa.Integer(), nullable=False),
        sa.Column("round_at_fence", sa.Integer(), nullable=False),
        sa.Column("target_round", sa.Integer(), nullable=False),
        sa.Column("head_before", sa.String(length=71), nullable=True),
        sa.Column("rollback_digest", sa.String(length=71), nullable=True),
        sa.Column(
            "sources", sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"), nullable=False
        ),
        sa.Column(
            "fallback", sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"), nullable=True
        ),
        sa.Column(
            "audit", sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"), nullable=True
        ),
        sa.Column("clean_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("done_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "action IN ('rolled-back', 're-initialised', 'retired', 'unlearned')", name=op.f("ck_lines_known_action")
        ),
        sa.CheckConstraint("epoch_after > epoch_before", name=op.f("ck_lines_fence_moves_on")),
        sa.ForeignKeyConstraint(["cohort_id"], ["cohorts.id"], name=op.f("fk_lines_cohort_id_cohorts")),
        sa.ForeignKeyConstraint(["erasure_id"], ["erasures.id"], name=op.f("fk_lines_erasure_id_erasures")),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_lines_run_id_runs")),
        sa.PrimaryKeyConstraint("erasure_id", "cohort_id", name=op.f("pk_lines")),
    )
    op.create_index(op.f("ix_lines_cohort_id"), "lines", ["cohort_id"], unique=False)

    op.create_table(
        "members",
        sa.Column("cohort_id", sa.Uuid(), nullable=False),
        sa.Column("client_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("active", sa.Boolean(), nullable=False),
        sa.Column("joined", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["client_id"], ["clients.id"], name=op.f("fk_members_client_id_clients")),
        sa.ForeignKeyConstraint(["cohort_id"], ["cohorts.id"], name=op.f("fk_members_cohort_id_cohorts")),
        sa.PrimaryKeyConstraint("cohort_id", "client_id", name=op.f("pk_members")),
    )
    op.create_index(op.f("ix_members_client_id"), "members", ["client_id"], unique=False)

    op.create_table(
        "rounds",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("cohort_id", sa.Uuid(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("model_digest", sa.String(length=71), nullable=False),
        sa.Column("quorum", sa.Integer(), nullable=False),
        sa.Column("num_selected", sa.Integer(), nullable=False),
        sa.Column("opened_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("staleness_bound", sa.Integer(), nullable=True),
        sa.Column("num_open", sa.Integer(), nullable=False),
        sa.Column("num_received", sa.Integer(), nullable=False),
        sa.Column("num_failed", sa.Integer(), nullable=False),
        sa.Column("num_late", sa.Integer(), nullable=False),
        sa.Column("waiting_for_quorum", sa.Boolean(), nullable=False),
        sa.Column("close_at_deadline", sa.Boolean(), nullable=False),
        sa.Column("closed_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("status IN ('open', 'closed', 'abandoned')", name=op.f("ck_rounds_known_status")),
        sa.CheckConstraint("num_open >= 0", name=op.f("ck_rounds_open_count")),
        sa.ForeignKeyConstraint(["cohort_id"], ["cohorts.id"], name=op.f("fk_rounds_cohort_id_cohorts")),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_rounds_run_id_runs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rounds")),
        sa.UniqueConstraint("cohort_id", "epoch", "number", "kind", name=op.f("uq_rounds_cohort_id")),
    )
    op.create_index(
        "ix_rounds_due",
        "rounds",
        ["due_at"],
        unique=False,
        postgresql_where=sa.text("due_at IS NOT NULL"),
        sqlite_where=sa.text("due_at IS NOT NULL"),
    )
    op.create_index(op.f("ix_rounds_run_id"), "rounds", ["run_id"], unique=False)

    op.create_table(
        "parents",
        sa.Column("checkpoint_id", sa.Uuid(), nullable=False),
        sa.Column("parent_id", sa.Uuid(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("weight", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(
            ["checkpoint_id"], ["checkpoints.id"], name=op.f("fk_parents_checkpoint_id_checkpoints")
        ),
        sa.ForeignKeyConstraint(["parent_id"], ["checkpoints.id"], name=op.f("fk_parents_parent_id_checkpoints")),
        sa.PrimaryKeyConstraint("checkpoint_id", "parent_id", name=op.f("pk_parents")),
    )
    op.create_index(op.f("ix_parents_parent_id"), "parents", ["parent_id"], unique=False)

    op.create_table(
        "tasks",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("cohort_id", sa.Uuid(), nullable=False),
        sa.Column("round_id", sa.Uuid(), nullable=False),
        sa.Column("client_id", sa.Uuid(), nullable=False),
        sa.Column("client_name", sa.String(length=63), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("base_round", sa.Integer(), nullable=False),
        sa.Column("model_digest", sa.String(length=71), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column(
            "local", sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"), nullable=True
        ),
        sa.Column("work", sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("num_failures", sa.Integer(), nullable=False),
        sa.Column("lease_token", sa.String(length=64), nullable=True),
        sa.Column("leased_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("progress", sa.Float(), nullable=False),
        sa.Column("result_digest", sa.String(length=71), nullable=True),
        sa.Column("failure", sa.Text(), nullable=True),
        sa.Column("log_tail", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "status <> 'leased' OR (lease_token IS NOT NULL AND due_at IS NOT NULL)", name=op.f("ck_tasks_lease")
        ),
        sa.CheckConstraint(
            "status IN ('standby', 'ready', 'leased', 'done', 'failed', 'revoked')", name=op.f("ck_tasks_known_status")
        ),
        sa.ForeignKeyConstraint(["client_id"], ["clients.id"], name=op.f("fk_tasks_client_id_clients")),
        sa.ForeignKeyConstraint(["cohort_id"], ["cohorts.id"], name=op.f("fk_tasks_cohort_id_cohorts")),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.id"], name=op.f("fk_tasks_round_id_rounds")),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_tasks_run_id_runs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tasks")),
        sa.UniqueConstraint("round_id", "client_id", name=op.f("uq_tasks_round_id")),
    )
    op.create_index(
        "ix_tasks_claimable",
        "tasks",
        ["client_id"],
        unique=False,
        postgresql_where=sa.text("status IN ('ready', 'leased')"),
        sqlite_where=sa.text("status IN ('ready', 'leased')"),
    )
    op.create_index(
        "ix_tasks_due",
        "tasks",
        ["due_at"],
        unique=False,
        postgresql_where=sa.text("status = 'leased'"),
        sqlite_where=sa.text("status = 'leased'"),
    )
    op.create_index(
        "ix_tasks_open",
        "tasks",
        ["cohort_id"],
        unique=False,
        postgresql_where=sa.text("status IN ('standby', 'ready', 'leased')"),
        sqlite_where=sa.text("status IN ('standby', 'ready', 'leased')"),
    )
    op.create_index(op.f("ix_tasks_run_id"), "tasks", ["run_id"], unique=False)
    op.create_index(
        "uq_tasks_one_open",
        "tasks",
        ["cohort_id", "client_id", "kind"],
        unique=True,
        postgresql_where=sa.text("status IN ('standby', 'ready', 'leased')"),
        sqlite_where=sa.text("status IN ('standby', 'ready', 'leased')"),
    )

    op.create_table(
        "updates",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("cohort_id", sa.Uuid(), nullable=False),
        sa.Column("round_id", sa.Uuid(), nullable=False),
        sa.Column("task_id", sa.Uuid(), nullable=False),
        sa.Column("client_id", sa.Uuid(), nullable=False),
        sa.Column("client_name", sa.String(length=63), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("base_round", sa.Integer(), nullable=False),
        sa.Column("base_digest", sa.String(length=71), nullable=False),
        sa.Column("digest", sa.String(length=71), nullable=True),
        sa.Column("num_samples", sa.BigInteger(), nullable=False),
        sa.Column(
            "metrics", sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"), nullable=False
        ),
        sa.Column("received_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("consumed_by", sa.Uuid(), nullable=True),
        sa.Column("stored", sa.Boolean(), nullable=False),
        sa.CheckConstraint("(status = 'consumed') = (consumed_by IS NOT NULL)", name=op.f("ck_updates_consumed_once")),
        sa.CheckConstraint("status IN ('buffered', 'consumed', 'discarded')", name=op.f("ck_updates_known_status")),
        sa.CheckConstraint("num_samples > 0", name=op.f("ck_updates_samples")),
        sa.ForeignKeyConstraint(["client_id"], ["clients.id"], name=op.f("fk_updates_client_id_clients")),
        sa.ForeignKeyConstraint(["cohort_id"], ["cohorts.id"], name=op.f("fk_updates_cohort_id_cohorts")),
        sa.ForeignKeyConstraint(["consumed_by"], ["rounds.id"], name=op.f("fk_updates_consumed_by_rounds")),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.id"], name=op.f("fk_updates_round_id_rounds")),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_updates_run_id_runs")),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name=op.f("fk_updates_task_id_tasks")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_updates")),
        sa.UniqueConstraint("task_id", name=op.f("uq_updates_task_id")),
    )
    op.create_index(op.f("ix_updates_client_id"), "updates", ["client_id"], unique=False)
    op.create_index("ix_updates_cohort_status", "updates", ["cohort_id", "status"], unique=False)
    op.create_index(op.f("ix_updates_consumed_by"), "updates", ["consumed_by"], unique=False)
    op.create_index(op.f("ix_updates_digest"), "updates", ["digest"], unique=False)
    op.create_index(op.f("ix_updates_run_id"), "updates", ["run_id"], unique=False)

    op.create_table(
        "contributions",
        sa.Column("checkpoint_id", sa.Uuid(), nullable=False),
        sa.Column("update_id", sa.Uuid(), nullable=False),
        sa.Column("client_id", sa.Uuid(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("weight", sa.Float(), nullable=False),
        sa.Column("staleness", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(length=71), nullable=True),
        sa.Column("distance", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(
            ["checkpoint_id"], ["checkpoints.id"], name=op.f("fk_contributions_checkpoint_id_checkpoints")
        ),
        sa.ForeignKeyConstraint(["client_id"], ["clients.id"], name=op.f("fk_contributions_client_id_clients")),
        sa.ForeignKeyConstraint(["update_id"], ["updates.id"], name=op.f("fk_contributions_update_id_updates")),
        sa.PrimaryKeyConstraint("checkpoint_id", "update_id", name=op.f("pk_contributions")),
    )
    op.create_index(op.f("ix_contributions_client_id"), "contributions", ["client_id"], unique=False)
    op.create_index(op.f("ix_contributions_update_id"), "contributions", ["update_id"], unique=False)

    op.create_table(
        "kept_updates",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("cohort_id", sa.Uuid(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("update_id", sa.Uuid(), nullable=False),
        sa.Column("client_id", sa.Uuid(), nullable=False),
        sa.Column("client_name", sa.String(length=63), nullable=False),
        sa.Column("base_round", sa.Integer(), nullable=False),
        sa.Column("base_digest", sa.String(length=71), nullable=False),
        sa.Column("source", sa.String(length=71), nullable=False),
        sa.Column("digest", sa.String(length=71), nullable=False),
        sa.Column("num_bytes", sa.BigInteger(), nullable=False),
        sa.Column("dtype", sa.String(length=8), nullable=False),
        sa.Column("compression", sa.String(length=8), nullable=False),
        sa.Column("largest_error", sa.Float(), nullable=False),
        sa.Column("relative_error", sa.Float(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("kept_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("status IN ('sealing', 'stored', 'dropped')", name=op.f("ck_kept_updates_known_status")),
        sa.ForeignKeyConstraint(["client_id"], ["clients.id"], name=op.f("fk_kept_updates_client_id_clients")),
        sa.ForeignKeyConstraint(["cohort_id"], ["cohorts.id"], name=op.f("fk_kept_updates_cohort_id_cohorts")),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_kept_updates_run_id_runs")),
        sa.ForeignKeyConstraint(["update_id"], ["updates.id"], name=op.f("fk_kept_updates_update_id_updates")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_kept_updates")),
        sa.UniqueConstraint("update_id", "source", name=op.f("uq_kept_updates_update_id")),
    )
    for column in ("client_id", "cohort_id", "run_id", "source"):
        op.create_index(op.f(f"ix_kept_updates_{column}"), "kept_updates", [column], unique=False)

    op.create_table(
        "blob_contents",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("owner", sa.Uuid(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("sender", sa.Text(), nullable=False),
        sa.Column("num_bytes", sa.BigInteger(), nullable=False),
        sa.Column("complete", sa.Boolean(), nullable=False),
        sa.Column("modified_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(
        "blob_contents_one_blob",
        "blob_contents",
        ["owner", "digest"],
        unique=True,
        postgresql_where=sa.text("complete"),
        sqlite_where=sa.text("complete"),
    )
    op.create_index(
        "blob_contents_one_part",
        "blob_contents",
        ["owner", "digest", "sender"],
        unique=True,
        postgresql_where=sa.text("NOT complete"),
        sqlite_where=sa.text("NOT complete"),
    )

    op.create_table(
        "blob_chunks",
        sa.Column("content_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False, comment="of the chunk's first byte in the blob"),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["content_id"], ["blob_contents.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("content_id", "position"),
    )

    if op.get_bind().dialect.name == "postgresql":
        # Tensors hardly compress; trying costs more than writing them.
        op.execute("ALTER TABLE blob_chunks ALTER COLUMN data SET STORAGE EXTERNAL")


def downgrade() -> None:

    op.drop_table("blob_chunks")
    op.drop_index("blob_contents_one_part", "blob_contents")
    op.drop_index("blob_contents_one_blob", "blob_contents")

    op.drop_table("blob_contents")
    op.drop_table("kept_updates")
    op.drop_index(op.f("ix_contributions_update_id"), "contributions")
    op.drop_index(op.f("ix_contributions_client_id"), "contributions")

    op.drop_table("contributions")
    op.drop_index(op.f("ix_updates_run_id"), "updates")
    op.drop_index(op.f("ix_updates_digest"), "updates")
    op.drop_index(op.f("ix_updates_consumed_by"), "updates")
    op.drop_index("ix_updates_cohort_status", "updates")
    op.drop_index(op.f("ix_updates_client_id"), "updates")

    op.drop_table("updates")
    op.drop_index("uq_tasks_one_open", "tasks")
    op.drop_index(op.f("ix_tasks_run_id"), "tasks")
    op.drop_index("ix_tasks_open", "tasks")
    op.drop_index("ix_tasks_due", "tasks")
    op.drop_index("ix_tasks_claimable", "tasks")

    op.drop_table("tasks")
    op.drop_index(op.f("ix_parents_parent_id"), "parents")

    op.drop_table("parents")
    op.drop_index(op.f("ix_rounds_run_id"), "rounds")
    op.drop_index("ix_rounds_due", "rounds")

    op.drop_table("rounds")
    op.drop_index(op.f("ix_members_client_id"), "members")

    op.drop_table("members")
    op.drop_index(op.f("ix_lines_cohort_id"), "lines")

    op.drop_table("lines")
    op.drop_index(op.f("ix_jobs_run_id"), "jobs")
    op.drop_index("ix_jobs_open", "jobs")
    op.drop_index(op.f("ix_jobs_cohort_id"), "jobs")

    op.drop_table("jobs")
    op.drop_index(op.f("ix_checkpoints_run_id"), "checkpoints")
    op.drop_index(op.f("ix_checkpoints_digest"), "checkpoints")

    op.drop_table("checkpoints")
    op.drop_index("uq_subjects_one_active", "subjects")

    op.drop_table("subjects")
    op.drop_table("journal_heads")
    op.drop_table("journal")
    op.drop_index(op.f("ix_exclusions_client_id"), "exclusions")

    op.drop_table("exclusions")
    op.drop_table("erasure_log")
    op.drop_index(op.f("ix_credentials_federation_id"), "credentials")
    op.drop_index(op.f("ix_credentials_client_id"), "credentials")

    op.drop_table("credentials")
    op.drop_table("cohorts")
    op.drop_table("certificates")
    op.drop_table("artefacts")
    op.drop_table("blobs")
    op.drop_index(op.f("ix_runs_federation_id"), "runs")

    op.drop_table("runs")
    op.drop_index("ix_erasures_open", "erasures")
    op.drop_index(op.f("ix_erasures_federation_id"), "erasures")
    op.drop_index(op.f("ix_erasures_duplicate_of"), "erasures")

    op.drop_table("deliveries")
    op.drop_table("erasures")
    op.drop_table("clients")
    op.drop_table("inbox")
    op.drop_table("federations")
