"""The tables of browser sessions and of links that hand a certificate over."""

from __future__ import annotations

from sqlalchemy import Column, ForeignKey, String, Table, Uuid

from coordinator.store.tables.columns import Instant, metadata

browser_sessions = Table(
    "browser_sessions",
    metadata,
    Column("id", Uuid, primary_key=True),
    # A session is worth what its credential is worth: it ends with it.
    Column("credential_id", Uuid, ForeignKey("credentials.id"), nullable=False, index=True),
    # Only the hash of a secret is ever stored.
    Column("secret_hash", String(64), nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("seen_at", Instant, nullable=False),
    Column("ends_at", Instant, nullable=False),
)

hand_overs = Table(
    "hand_overs",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("erasure_id", Uuid, ForeignKey("erasures.id"), nullable=False, index=True),
    Column("secret_hash", String(64), nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("expires_at", Instant, nullable=False),
    Column("opened_at", Instant),
    Column("revoked_at", Instant),
)
