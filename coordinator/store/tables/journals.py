"""What is remembered of events and of requests to the API, and the order of a federation's events."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    PrimaryKeyConstraint,
    String,
    Table,
    UniqueConstraint,
    Uuid,
)

from coordinator.store.tables.columns import Instant, Json, metadata

journal_heads = Table(
    "journal_heads",
    metadata,
    # Bumped last in a transaction: journal numbers of a run are gapless and in the order of the commits.
    Column("run_id", Uuid, ForeignKey("runs.id"), primary_key=True),
    Column("seq", BigInteger, nullable=False),
)

journal = Table(
    "journal",
    metadata,
    Column("run_id", Uuid, ForeignKey("runs.id"), nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("cohort_id", Uuid),
    Column("at", Instant, nullable=False),
    Column("type", String(40), nullable=False),
    Column("data", Json, nullable=False),
    PrimaryKeyConstraint("run_id", "seq"),
)

erasure_log = Table(
    "erasure_log",
    metadata,
    Column("erasure_id", Uuid, ForeignKey("erasures.id"), nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("at", Instant, nullable=False),
    Column("type", String(40), nullable=False),
    Column("data", Json, nullable=False),
    Column("run_id", Uuid),
    Column("cohort_id", Uuid),
    PrimaryKeyConstraint("erasure_id", "seq"),
)

inbox = Table(
    "inbox",
    metadata,
    # A request that was answered before is answered the same again: who asked, where, under which key.
    Column("principal", String(80), nullable=False),
    Column("route", String(80), nullable=False),
    Column("key", String(255), nullable=False),
    Column("fingerprint", String(71), nullable=False),
    Column("made", Uuid, nullable=False),
    Column("created_at", Instant, nullable=False),
    PrimaryKeyConstraint("principal", "route", "key"),
)

feed_segments = Table(
    "feed_segments",
    metadata,
    # A stretch of one journal: its events `begins` to `ends` are numbers `first` and following of the federation.
    Column("federation_id", Uuid, ForeignKey("federations.id"), nullable=False),
    Column("first", BigInteger, nullable=False),
    Column("journal_id", Uuid, nullable=False),
    Column("is_request", Boolean, nullable=False),
    Column("begins", BigInteger, nullable=False),
    Column("ends", BigInteger, nullable=False),
    # Of two processes that number events at the same instant, the second begins anew.
    PrimaryKeyConstraint("federation_id", "first"),
    # No event is numbered twice.
    UniqueConstraint("journal_id", "begins"),
    CheckConstraint("ends >= begins", name="not_empty"),
)
