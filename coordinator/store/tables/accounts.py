"""Federations, their clients and credentials, and how clients were divided among jobs and paid."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    PrimaryKeyConstraint,
    String,
    Table,
    UniqueConstraint,
    Uuid,
)

from coordinator.store.tables.columns import Instant, Json, metadata, one_of, where

federations = Table(
    "federations",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("name", String(63), nullable=False, unique=True),
    Column("created_at", Instant, nullable=False),
    Column("allocation", String(16)),
    Column("incentives", Json),
    Column("four_eyes", String(8), nullable=False, server_default="off"),
)

clients = Table(
    "clients",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("federation_id", Uuid, ForeignKey("federations.id"), nullable=False),
    Column("name", String(63), nullable=False),
    Column("status", String(16), nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("last_seen_at", Instant),
    Column("agent_version", String(100)),
    Column("devices", Json, nullable=False),
    Column("exclusions", String(71)),
    Column("exclusions_acked", String(71)),
    Column("needed_by", Uuid),
    Column("canary", Json),
    Column("max_samples", BigInteger),
    Column("superseded_at", Instant),
    Column("dropped_at", Instant),
    Column("resources", Json),
    one_of("status", "active", "removed", "erased"),
    # A client's name is its identity in seeds and in the order of aggregation: never two in one federation.
    UniqueConstraint("federation_id", "name"),
)

credentials = Table(
    "credentials",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("federation_id", Uuid, ForeignKey("federations.id"), index=True),
    Column("client_id", Uuid, ForeignKey("clients.id"), index=True),
    Column("role", String(16), nullable=False),
    Column("label", String(100), nullable=False),
    # Only the hash of a secret is ever stored.
    Column("secret_hash", String(64), nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("revoked_at", Instant),
    # The credential that it was created, or rotated, with.
    Column("created_by", Uuid),
    # Issuer and subject of a person who signs in with OpenID Connect; no token has such a credential.
    Column("subject", String(600)),
    one_of("role", "client", "viewer", "operator", "compliance", "admin"),
    # A client's credential names its client, nobody else's does.
    CheckConstraint("(role = 'client') = (client_id IS NOT NULL)", name="client_role"),
    # Somebody who signs in twice at the same time is one person, with one credential.
    Index(
        "uq_credentials_person",
        "subject",
        "federation_id",
        "role",
        unique=True,
        **where("subject IS NOT NULL AND revoked_at IS NULL"),
    ),
)

periods = Table(
    "periods",
    metadata,
    Column("federation_id", Uuid, ForeignKey("federations.id"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("strategy", String(16), nullable=False),
    Column("begun_at", Instant, nullable=False),
    Column("incentives", Json, nullable=False),
    Column("jobs", Json, nullable=False),
    Column("candidates", Json, nullable=False),
    Column("division", Json, nullable=False),
    # Two that begin a period at the same instant would not know of each other's jobs: the second begins anew.
    PrimaryKeyConstraint("federation_id", "number"),
)

ledger = Table(
    "ledger",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("federation_id", Uuid, ForeignKey("federations.id"), nullable=False, index=True),
    Column("client_id", Uuid, ForeignKey("clients.id"), nullable=False, index=True),
    Column("client_name", String(63), nullable=False),
    Column("run_id", Uuid, ForeignKey("runs.id"), nullable=False),
    Column("job_id", Uuid, nullable=False),
    Column("update_id", Uuid, nullable=False),
    Column("kind", String(8), nullable=False),
    Column("period", Integer, nullable=False),
    Column("round", Integer, nullable=False),
    Column("amounts", Json, nullable=False),
    Column("at", Instant, nullable=False),
    one_of("kind", "cost", "reward"),
    # An answer costs once and is paid once.
    UniqueConstraint("update_id", "kind"),
)
