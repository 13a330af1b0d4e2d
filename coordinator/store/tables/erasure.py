"""Requests to forget: whom and what they are about, what they did, and whom they were told to."""

from __future__ import annotations

from typing import Final, get_args

from sqlalchemy import (
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    false,
)

from coordinator.store.tables.columns import Instant, Json, Word, metadata, one_of, where
from services.audit.predicate import ArtefactKind, Disposition
from services.wire.v1.erasure import ErasureStatus

SCRUBBED_KINDS: Final = ("log-tail", "device", "figure", "canary", "failure-reason", "ledger")
"""Kinds of artefacts that an erasure takes out of rows that stay (store/scrubbing)."""

erasures = Table(
    "erasures",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("federation_id", Uuid, ForeignKey("federations.id"), nullable=False, index=True),
    Column("status", Word(20), nullable=False),
    Column("scope", String(16), nullable=False),
    Column("samples", Json, nullable=False),
    Column("method", String(40), nullable=False),
    Column("guarantee", String(16), nullable=False),
    Column("regulation", String(100), nullable=False),
    Column("requested_by", String(80), nullable=False),
    Column("salt", String(64), nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("legal_deadline", Instant, nullable=False),
    Column("params", Json, nullable=False),
    Column("recovery_rounds", Integer),
    Column("recovery", Json),
    Column("fallback", String(16)),
    Column("audit", Json),
    Column("version", Integer, nullable=False),
    Column("reason", Text),
    Column("is_held", Boolean, nullable=False, server_default=false()),
    Column("duplicate_of", Uuid, ForeignKey("erasures.id"), index=True),
    Column("callbacks", Json, nullable=False),
    Column("chosen", String(40)),
    Column("fenced_at", Instant),
    Column("first_clean_at", Instant),
    Column("completed_at", Instant),
    Column("reward", Float),
    Column("ground", String(20)),
    Column("external_ref", String(200)),
    Column("filed_by", Json),
    Column("needs_approval", Boolean, nullable=False, server_default=false()),
    Column("four_eyes", Boolean, nullable=False, server_default=false()),
    Column("ruling", Json),
    Column("extension", Json),
    one_of("status", *get_args(ErasureStatus)),
    one_of("scope", "client", "samples"),
    one_of("guarantee", "exact", "approximate"),
    Index("ix_erasures_open", "created_at", **where("status IN ('fenced', 'executing', 'requires_action')")),
)

subjects = Table(
    "subjects",
    metadata,
    Column("erasure_id", Uuid, ForeignKey("erasures.id"), nullable=False),
    Column("client_id", Uuid, ForeignKey("clients.id"), nullable=False),
    Column("name", String(63), nullable=False),
    Column("active", Boolean, nullable=False),
    PrimaryKeyConstraint("erasure_id", "client_id"),
    # One open request per subject; further ones are recorded as its duplicates.
    Index("uq_subjects_one_active", "client_id", unique=True, **where("active")),
)

exclusions = Table(
    "exclusions",
    metadata,
    Column("erasure_id", Uuid, ForeignKey("erasures.id"), nullable=False),
    Column("client_id", Uuid, ForeignKey("clients.id"), nullable=False, index=True),
    Column("client_name", String(63), nullable=False),
    Column("samples", Json, nullable=False),
    Column("ordered_at", Instant, nullable=False),
    Column("acked_at", Instant),
    Column("unknown", Json, nullable=False),
    Column("problem", Text),
    PrimaryKeyConstraint("erasure_id", "client_id"),
    # What is acknowledged is honoured.
    CheckConstraint("acked_at IS NULL OR problem IS NULL", name="honoured"),
)

lines = Table(
    "lines",
    metadata,
    Column("erasure_id", Uuid, ForeignKey("erasures.id"), nullable=False),
    Column("cohort_id", Uuid, ForeignKey("cohorts.id"), nullable=False, index=True),
    Column("run_id", Uuid, ForeignKey("runs.id"), nullable=False),
    Column("cohort_name", String(200), nullable=False),
    Column("action", String(16), nullable=False),
    Column("epoch_before", Integer, nullable=False),
    Column("epoch_after", Integer, nullable=False),
    Column("round_at_fence", Integer, nullable=False),
    Column("target_round", Integer, nullable=False),
    Column("head_before", String(71)),
    Column("rollback_digest", String(71)),
    Column("sources", Json, nullable=False),
    Column("fallback", Json),
    Column("audit", Json),
    Column("clean_at", Instant),
    Column("done_at", Instant),
    Column("cut_at", Instant),
    PrimaryKeyConstraint("erasure_id", "cohort_id"),
    one_of("action", "rolled-back", "re-initialised", "retired", "unlearned"),
    CheckConstraint("epoch_after > epoch_before", name="fence_moves_on"),
)

artefacts = Table(
    "artefacts",
    metadata,
    # What a request found to purge: recorded before anything is deleted, so that the certificate lists all of it. What
    # became of it is looked up when the certificate is signed, unless whoever dealt with it has said so before.
    Column("erasure_id", Uuid, ForeignKey("erasures.id"), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("digest", String(71), nullable=False, index=True),
    Column("disposition", String(32)),
    Column("reason", Text, nullable=False, server_default=""),
    PrimaryKeyConstraint("erasure_id", "kind", "digest"),
    one_of("kind", *get_args(ArtefactKind)),
    one_of("disposition", *get_args(Disposition)),
)

certificates = Table(
    "certificates",
    metadata,
    # Exactly one certificate per request.
    Column("erasure_id", Uuid, ForeignKey("erasures.id"), primary_key=True),
    Column("envelope", Text, nullable=False),
    Column("issued_at", Instant, nullable=False),
)

deliveries = Table(
    "deliveries",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("erasure_id", Uuid, ForeignKey("erasures.id"), nullable=False),
    Column("seq", Integer, nullable=False),
    Column("callback", Integer, nullable=False),
    Column("url", String(2000), nullable=False),
    Column("type", String(40), nullable=False),
    Column("payload", Json, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("status", String(16), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("next_attempt_at", Instant),
    Column("delivered_at", Instant),
    Column("error", Text),
    one_of("status", "pending", "delivered", "failed"),
    # Each change goes to each callback once.
    UniqueConstraint("erasure_id", "seq", "callback"),
)
