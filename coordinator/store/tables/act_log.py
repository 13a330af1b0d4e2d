"""The tables of the log of acts."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKey,
    Index,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)

from coordinator.store.tables.columns import Instant, Json, metadata, where

_UNCHAINED = "seq IS NULL"
IS_UNCHAINED = text(f"acts.{_UNCHAINED}")

acts = Table(
    "acts",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("federation_id", Uuid, ForeignKey("federations.id"), nullable=False),
    Column("at", Instant, nullable=False),
    Column("act", String(40), nullable=False),
    Column("role", String(16), nullable=False),
    Column("about_kind", String(16)),
    Column("about_id", Uuid, index=True),
    # [{says, commitment, keys, sealed}]: what is sealed can be read while all of the keys are there.
    Column("parts", Json, nullable=False),
    Column("gap", Json),
    # None until the act is linked to the chain of its federation. From then on nothing of it changes.
    Column("seq", BigInteger),
    Column("digest", String(71)),
    UniqueConstraint("federation_id", "seq"),
    Index("ix_acts_unchained", "federation_id", "id", **where(_UNCHAINED)),
)

act_chains = Table(
    "act_chains",
    metadata,
    # One row a federation, locked by whoever links acts to its chain: up to where, and what is kept of it.
    Column("federation_id", Uuid, ForeignKey("federations.id"), nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("digest", String(71), nullable=False),
    Column("kept_from", BigInteger, nullable=False),
    Column("before", String(71), nullable=False),
    # The newest signed head: it may lag behind for a moment.
    Column("head", Text),
    PrimaryKeyConstraint("federation_id"),
)
