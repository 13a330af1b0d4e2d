"""The table that puts the events of a federation's runs and requests into one order."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    PrimaryKeyConstraint,
    Table,
    UniqueConstraint,
    Uuid,
)

from coordinator.store.act_tables import metadata

__all__ = ["feed_segments", "metadata"]

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
