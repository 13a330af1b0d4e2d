"""What the database knows of tombstones, signing keys and what happened to them."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Integer,
    String,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
)

from coordinator.store.tables.columns import Instant, metadata

evidence_state = Table(
    "evidence_state",
    metadata,
    # One row: every entry of the log of tombstones up to this position is fenced in this database.
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("num_tombstones", BigInteger, nullable=False),
    Column("digest", String(71), nullable=False),
    CheckConstraint("id = 1", name="only_one"),
)

signing_keys = Table(
    "signing_keys",
    metadata,
    # Public keys of this installation's certificates, the one that signs now last.
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("key_id", String(71), nullable=False),
    Column("public_key", Text, nullable=False),
    Column("recorded_at", Instant, nullable=False),
    UniqueConstraint("key_id"),
)

incidents = Table(
    "incidents",
    metadata,
    # What happened to the evidence and somebody confirmed; later certificates say so.
    Column("id", Uuid, primary_key=True),
    Column("at", Instant, nullable=False),
    Column("kind", String(40), nullable=False),
    Column("explanation", Text, nullable=False),
    Column("reported_by", String(80), nullable=False),
)
