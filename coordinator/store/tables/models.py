"""Models, whose updates are in them, and the bytes of both."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    String,
    Table,
    UniqueConstraint,
    Uuid,
)

from coordinator.store.tables.columns import Instant, Json, Word, metadata, one_of, where

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("run_id", Uuid, ForeignKey("runs.id"), nullable=False, index=True),
    Column("cohort_id", Uuid, ForeignKey("cohorts.id"), nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("round", Integer, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("digest", String(71), nullable=False, index=True),
    Column("base_id", Uuid, ForeignKey("checkpoints.id")),
    Column("scale", Float, nullable=False),
    Column("metrics", Json, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("superseded_by", Uuid, ForeignKey("erasures.id")),
    Column("stored", Boolean, nullable=False),
    Column("forgets", Json, nullable=False),
    one_of("kind", "init", "aggregate", "reinit", "merge", "forgotten"),
    # An aggregate stands on a base, what a method made of a model on that model, an initial model on none.
    CheckConstraint("(kind IN ('aggregate', 'forgotten')) = (base_id IS NOT NULL)", name="based"),
    # Each round of an epoch is published once.
    UniqueConstraint("cohort_id", "epoch", "round"),
)

contributions = Table(
    "contributions",
    metadata,
    Column("checkpoint_id", Uuid, ForeignKey("checkpoints.id"), nullable=False),
    Column("update_id", Uuid, ForeignKey("updates.id"), nullable=False, index=True),
    Column("client_id", Uuid, ForeignKey("clients.id"), nullable=False, index=True),
    Column("position", Integer, nullable=False),
    Column("weight", Float, nullable=False),
    Column("staleness", Integer, nullable=False),
    Column("digest", String(71)),
    Column("distance", Float),
    Column("factor", Float),
    # An update is in a checkpoint once.
    PrimaryKeyConstraint("checkpoint_id", "update_id"),
    Index("ix_contributions_digest", "digest", **where("digest IS NOT NULL")),
)

parents = Table(
    "parents",
    metadata,
    Column("checkpoint_id", Uuid, ForeignKey("checkpoints.id"), nullable=False),
    Column("parent_id", Uuid, ForeignKey("checkpoints.id"), nullable=False, index=True),
    Column("position", Integer, nullable=False),
    Column("weight", Float, nullable=False),
    PrimaryKeyConstraint("checkpoint_id", "parent_id"),
)

kept_updates = Table(
    "kept_updates",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("run_id", Uuid, ForeignKey("runs.id"), nullable=False, index=True),
    Column("cohort_id", Uuid, ForeignKey("cohorts.id"), nullable=False, index=True),
    Column("round", Integer, nullable=False),
    Column("update_id", Uuid, ForeignKey("updates.id"), nullable=False),
    Column("client_id", Uuid, ForeignKey("clients.id"), nullable=False, index=True),
    Column("client_name", String(63), nullable=False),
    Column("base_round", Integer, nullable=False),
    Column("base_digest", String(71), nullable=False),
    # What it is a copy of: the update as it was added to the model.
    Column("source", String(71), nullable=False, index=True),
    # Named before the bytes are stored, so that an erasure finds them even if the row is never finished.
    Column("digest", String(71), nullable=False, index=True),
    Column("num_bytes", BigInteger, nullable=False),
    Column("dtype", String(8), nullable=False),
    Column("compression", String(8), nullable=False),
    Column("largest_error", Float, nullable=False),
    Column("relative_error", Float, nullable=False),
    Column("status", String(16), nullable=False),
    Column("kept_at", Instant, nullable=False),
    one_of("status", "sealing", "stored", "dropped"),
    # One copy of each; what was dropped is not sealed again.
    UniqueConstraint("update_id", "source"),
)

blobs = Table(
    "blobs",
    metadata,
    # Also the name that the bytes lie under. The row is written before the first of them.
    Column("id", Uuid, primary_key=True),
    Column("federation_id", Uuid, ForeignKey("federations.id"), nullable=False),
    Column("origin", Word(8), nullable=False),
    Column("origin_id", Uuid, index=True),
    Column("client_id", Uuid, ForeignKey("clients.id"), index=True),
    Column("cohort_id", Uuid, ForeignKey("cohorts.id"), index=True),
    Column("epoch", Integer),
    Column("digest", String(71)),
    Column("num_bytes", BigInteger, nullable=False),
    Column("layout_digest", String(71)),
    Column("updatable_digest", String(71)),
    Column("finite", Boolean),
    Column("status", Word(10), nullable=False),
    Column("key_name", String(100), index=True),
    Column("client_key_name", String(100)),
    # Of the bytes, itself sealed under the keys that are named; none while they lie plain, as older versions left them.
    Column("data_key", LargeBinary),
    Column("created_at", Instant, nullable=False),
    one_of("origin", "task", "job", "operator", "copy"),
    one_of("status", "arriving", "stored", "dropping"),
    # What is stored is known.
    CheckConstraint("status <> 'stored' OR digest IS NOT NULL", name="known_when_stored"),
    # Whatever is sealed names its key.
    CheckConstraint("data_key IS NULL OR key_name IS NOT NULL", name="key_named"),
    Index("ix_blobs_digest", "federation_id", "digest"),
    Index("ix_blobs_unsettled", "created_at", **where("status <> 'stored'")),
    Index("ix_blobs_plain", "id", **where("data_key IS NULL")),
    # Bytes have one origin, and an origin has the same bytes once; twice while plain ones are being sealed.
    Index(
        "uq_blobs_of_task",
        "origin_id",
        "digest",
        unique=True,
        **where("origin = 'task' AND status <> 'dropping' AND data_key IS NOT NULL"),
    ),
    Index(
        "uq_blobs_of_operator",
        "federation_id",
        "digest",
        unique=True,
        **where("origin = 'operator' AND status <> 'dropping' AND data_key IS NOT NULL"),
    ),
)
