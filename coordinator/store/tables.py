"""The tables. Each invariant that must survive a bug in the code above stands here as a constraint, with its reason."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final, get_args

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    false,
    text,
    true,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

from services.audit.predicate import ArtefactKind, Disposition
from services.wire.v1.erasure import ErasureStatus

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(column_0_label)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


class Instant(TypeDecorator[datetime]):
    """An aware UTC datetime on every back end (SQLite has no time zones of its own)."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: Any | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        instant: datetime = value
        return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)


Json = JSON().with_variant(JSONB(), "postgresql")


def _one_of(column: str, *values: str) -> CheckConstraint:
    return CheckConstraint(f"{column} IN ({', '.join(repr(v) for v in values)})", name=f"known_{column}")


SCRUBBED_KINDS: Final = ("log-tail", "device", "figure", "canary", "failure-reason", "ledger")
"""Kinds of artefacts that an erasure takes out of rows that stay (scrubbing.py)."""
_CLAIMABLE_OR_LEASED: Final = "status IN ('ready', 'leased')"
_OPEN_TASK: Final = "status IN ('standby', 'ready', 'leased')"
_LEASED_TASK: Final = "status = 'leased'"
_FAILED_TASK: Final = "failure IS NOT NULL"
_OPEN_JOB: Final = "status IN ('ready', 'leased')"
_OPEN_ROUND: Final = "status = 'open'"
# A database uses a partial index only for a query that says the index's condition in so many words: not with a
# parameter, and SQLite not for a narrower condition either. So queries for open work carry these beside their own.
IS_CLAIMABLE_OR_LEASED: Final = text(f"tasks.{_CLAIMABLE_OR_LEASED}")
IS_OPEN_TASK: Final = text(f"tasks.{_OPEN_TASK}")
IS_LEASED_TASK: Final = text(f"tasks.{_LEASED_TASK}")
IS_FAILED_TASK: Final = text(f"tasks.{_FAILED_TASK}")
IS_OPEN_JOB: Final = text(f"jobs.{_OPEN_JOB}")
IS_OPEN_ROUND: Final = text(f"rounds.{_OPEN_ROUND}")


def _where(condition: str) -> dict[str, Any]:
    """A partial index on both back ends."""
    return {"postgresql_where": text(condition), "sqlite_where": text(condition)}


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
    _one_of("status", "active", "removed", "erased"),
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
    _one_of("role", "client", "viewer", "operator", "compliance", "admin"),
    # A client's credential names its client, nobody else's does.
    CheckConstraint("(role = 'client') = (client_id IS NOT NULL)", name="client_role"),
)

runs = Table(
    "runs",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("federation_id", Uuid, ForeignKey("federations.id"), nullable=False, index=True),
    Column("name", String(63), nullable=False),
    Column("spec", Json, nullable=False),
    Column("status", String(16), nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("num_clients", Integer, nullable=False),
    Column("version", Integer, nullable=False),
    Column("hold", String(16)),
    Column("reason", Text),
    Column("ended_at", Instant),
    _one_of("status", "running", "paused", "completed", "failed", "cancelled"),
    # A run is held exactly while it is paused, and has an end exactly when it ended.
    CheckConstraint("(status = 'paused') = (hold IS NOT NULL)", name="hold_while_paused"),
    CheckConstraint("(status IN ('completed', 'failed', 'cancelled')) = (ended_at IS NOT NULL)", name="end_when_ended"),
)

cohorts = Table(
    "cohorts",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("run_id", Uuid, ForeignKey("runs.id"), nullable=False),
    Column("name", String(200), nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("phase", String(16), nullable=False),
    Column("program", String(40), nullable=False),
    Column("num_members", Integer, nullable=False),
    Column("num_clients_of_run", Integer, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("parent_id", Uuid, ForeignKey("cohorts.id")),
    Column("group", String(200), nullable=False),
    Column("is_lockstep", Boolean, nullable=False),
    Column("pending", Json),
    Column("extra_rounds", Integer, nullable=False),
    Column("recovery", Json),
    Column("unlearning", Json),
    Column("residuals", String(71)),
    Column("selection", Json),
    Column("program_state", Json),
    Column("awaiting", Uuid),
    Column("stream_round_id", Uuid),
    Column("num_buffered", Integer, nullable=False),
    Column("head_id", Uuid),
    Column("head_digest", String(71)),
    Column("round", Integer, nullable=False),
    Column("reason", Text),
    Column("allotment", Json),
    Column("stamp", Uuid),  # the store's own, not in the record: see warm.py
    Column("members_stamp", Uuid),
    _one_of("phase", "starting", "waiting", "asking", "computing", "finished", "failed", "retired"),
    _one_of("kind", "line", "root", "inner", "leaf", "profile", "merge"),
    UniqueConstraint("run_id", "name"),
    CheckConstraint("num_buffered >= 0", name="buffered_count"),
    # A head is a checkpoint and its bytes, or nothing at all.
    CheckConstraint("(head_id IS NULL) = (head_digest IS NULL)", name="whole_head"),
)

members = Table(
    "members",
    metadata,
    Column("cohort_id", Uuid, ForeignKey("cohorts.id"), nullable=False),
    Column("client_id", Uuid, ForeignKey("clients.id"), nullable=False, index=True),
    Column("name", String(63), nullable=False),
    Column("active", Boolean, nullable=False),
    Column("joined", Boolean, nullable=False),
    Column("allotted", Boolean, nullable=False, server_default=true()),
    PrimaryKeyConstraint("cohort_id", "client_id"),
)

rounds = Table(
    "rounds",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("run_id", Uuid, ForeignKey("runs.id"), nullable=False, index=True),
    Column("cohort_id", Uuid, ForeignKey("cohorts.id"), nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("number", Integer, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("status", String(16), nullable=False),
    Column("model_digest", String(71), nullable=False),
    Column("quorum", Integer, nullable=False),
    Column("num_selected", Integer, nullable=False),
    Column("opened_at", Instant, nullable=False),
    Column("due_at", Instant),
    Column("staleness_bound", Integer),
    Column("num_open", Integer, nullable=False),
    Column("num_received", Integer, nullable=False),
    Column("num_failed", Integer, nullable=False),
    Column("num_late", Integer, nullable=False),
    Column("waiting_for_quorum", Boolean, nullable=False),
    Column("close_at_deadline", Boolean, nullable=False),
    Column("closed_at", Instant),
    _one_of("status", "open", "closed", "abandoned"),
    # A cohort asks once for each round of an epoch: a round that ran twice would be counted twice.
    UniqueConstraint("cohort_id", "epoch", "number", "kind"),
    CheckConstraint("num_open >= 0", name="open_count"),
    Index("ix_rounds_due", "due_at", **_where("due_at IS NOT NULL")),
    Index("ix_rounds_open_model", "model_digest", **_where(_OPEN_ROUND)),
)

tasks = Table(
    "tasks",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("run_id", Uuid, ForeignKey("runs.id"), nullable=False, index=True),
    Column("cohort_id", Uuid, ForeignKey("cohorts.id"), nullable=False),
    Column("round_id", Uuid, ForeignKey("rounds.id"), nullable=False),
    Column("client_id", Uuid, ForeignKey("clients.id"), nullable=False),
    Column("client_name", String(63), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("status", String(16), nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("round", Integer, nullable=False),
    Column("base_round", Integer, nullable=False),
    Column("model_digest", String(71), nullable=False),
    Column("position", Integer, nullable=False),
    Column("local", Json),
    Column("work", Json),
    Column("attempt", Integer, nullable=False),
    Column("num_failures", Integer, nullable=False),
    Column("lease_token", String(64)),
    Column("leased_at", Instant),
    Column("due_at", Instant),
    Column("progress", Float, nullable=False),
    Column("result_digest", String(71)),
    Column("failure", Text),
    Column("log_tail", Text),
    _one_of("status", "standby", "ready", "leased", "done", "failed", "revoked"),
    # A client is asked once in a round.
    UniqueConstraint("round_id", "client_id"),
    # A leased task has a token and an end of its lease.
    CheckConstraint("status <> 'leased' OR (lease_token IS NOT NULL AND due_at IS NOT NULL)", name="lease"),
    Index("ix_tasks_claimable", "client_id", **_where(_CLAIMABLE_OR_LEASED)),
    Index("ix_tasks_open", "cohort_id", **_where(_OPEN_TASK)),
    Index("ix_tasks_due", "due_at", **_where(_LEASED_TASK)),
    Index("ix_tasks_of_client", "client_id", "run_id", "round"),
    Index("ix_tasks_failed", "client_id", **_where(_FAILED_TASK)),
    # A client has at most one piece of open work of a kind in a cohort.
    Index(
        "uq_tasks_one_open",
        "cohort_id",
        "client_id",
        "kind",
        unique=True,
        **_where(_OPEN_TASK),
    ),
)

updates = Table(
    "updates",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("run_id", Uuid, ForeignKey("runs.id"), nullable=False, index=True),
    Column("cohort_id", Uuid, ForeignKey("cohorts.id"), nullable=False),
    Column("round_id", Uuid, ForeignKey("rounds.id"), nullable=False),
    # Nothing is counted twice: a task has one result.
    Column("task_id", Uuid, ForeignKey("tasks.id"), nullable=False, unique=True),
    Column("client_id", Uuid, ForeignKey("clients.id"), nullable=False, index=True),
    Column("client_name", String(63), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("status", String(16), nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("base_round", Integer, nullable=False),
    Column("base_digest", String(71), nullable=False),
    Column("digest", String(71), index=True),
    Column("num_samples", BigInteger, nullable=False),
    Column("metrics", Json, nullable=False),
    Column("received_at", Instant, nullable=False),
    Column("seconds", Float, nullable=False),
    Column("consumed_by", Uuid, ForeignKey("rounds.id"), index=True),
    Column("stored", Boolean, nullable=False),
    Column("num_bytes", BigInteger),
    _one_of("status", "buffered", "consumed", "discarded"),
    CheckConstraint("num_samples > 0", name="samples"),
    CheckConstraint("(status = 'consumed') = (consumed_by IS NOT NULL)", name="consumed_once"),
    Index("ix_updates_cohort_status", "cohort_id", "status"),
)

jobs = Table(
    "jobs",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("run_id", Uuid, ForeignKey("runs.id"), index=True),
    Column("cohort_id", Uuid, ForeignKey("cohorts.id"), index=True),
    Column("federation_id", Uuid, ForeignKey("federations.id"), nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("kind", String(20), nullable=False),
    Column("kernel", String(40)),
    Column("params", Json, nullable=False),
    Column("inputs", Json, nullable=False),
    Column("status", String(16), nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("lease_token", String(64)),
    Column("due_at", Instant),
    Column("attempt", Integer, nullable=False),
    Column("num_failures", Integer, nullable=False),
    Column("error", Text),
    # Named before the bytes are stored: what a kernel made is found even if its result never counted.
    Column("output", String(71)),
    _one_of("status", "ready", "leased", "done", "failed", "cancelled"),
    CheckConstraint("(kind = 'kernel') = (kernel IS NOT NULL)", name="kernel_named"),
    Index("ix_jobs_open", "created_at", **_where(_OPEN_JOB)),
)

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
    _one_of("kind", "init", "aggregate", "reinit", "merge", "forgotten"),
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
    Index("ix_contributions_digest", "digest", **_where("digest IS NOT NULL")),
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
    _one_of("status", "sealing", "stored", "dropped"),
    # One copy of each; what was dropped is not sealed again.
    UniqueConstraint("update_id", "source"),
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

erasures = Table(
    "erasures",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("federation_id", Uuid, ForeignKey("federations.id"), nullable=False, index=True),
    Column("status", String(20), nullable=False),
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
    _one_of("status", *get_args(ErasureStatus)),
    _one_of("scope", "client", "samples"),
    _one_of("guarantee", "exact", "approximate"),
    Index("ix_erasures_open", "created_at", **_where("status IN ('fenced', 'executing', 'requires_action')")),
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
    Index("uq_subjects_one_active", "client_id", unique=True, **_where("active")),
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
    PrimaryKeyConstraint("erasure_id", "cohort_id"),
    _one_of("action", "rolled-back", "re-initialised", "retired", "unlearned"),
    CheckConstraint("epoch_after > epoch_before", name="fence_moves_on"),
)

certificates = Table(
    "certificates",
    metadata,
    # Exactly one certificate per request.
    Column("erasure_id", Uuid, ForeignKey("erasures.id"), primary_key=True),
    Column("envelope", Text, nullable=False),
    Column("issued_at", Instant, nullable=False),
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
    _one_of("kind", *get_args(ArtefactKind)),
    _one_of("disposition", *get_args(Disposition)),
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
    _one_of("status", "pending", "delivered", "failed"),
    # Each change goes to each callback once.
    UniqueConstraint("erasure_id", "seq", "callback"),
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

blobs = Table(
    "blobs",
    metadata,
    # Also the name that the bytes lie under. The row is written before the first of them.
    Column("id", Uuid, primary_key=True),
    Column("federation_id", Uuid, ForeignKey("federations.id"), nullable=False),
    Column("origin", String(8), nullable=False),
    Column("origin_id", Uuid, index=True),
    Column("client_id", Uuid, ForeignKey("clients.id"), index=True),
    Column("cohort_id", Uuid, ForeignKey("cohorts.id"), index=True),
    Column("epoch", Integer),
    Column("digest", String(71)),
    Column("num_bytes", BigInteger, nullable=False),
    Column("layout_digest", String(71)),
    Column("updatable_digest", String(71)),
    Column("finite", Boolean),
    Column("status", String(10), nullable=False),
    Column("key_name", String(100), index=True),
    Column("client_key_name", String(100)),
    # Of the bytes, itself sealed under the keys that are named; none while they lie plain, as older versions left them.
    Column("data_key", LargeBinary),
    Column("created_at", Instant, nullable=False),
    _one_of("origin", "task", "job", "operator", "copy"),
    _one_of("status", "arriving", "stored", "dropping"),
    # What is stored is known.
    CheckConstraint("status <> 'stored' OR digest IS NOT NULL", name="known_when_stored"),
    # Whatever is sealed names its key.
    CheckConstraint("data_key IS NULL OR key_name IS NOT NULL", name="key_named"),
    Index("ix_blobs_digest", "federation_id", "digest"),
    Index("ix_blobs_unsettled", "created_at", **_where("status <> 'stored'")),
    Index("ix_blobs_plain", "id", **_where("data_key IS NULL")),
    # Bytes have one origin, and an origin has the same bytes once; twice while plain ones are being sealed.
    Index(
        "uq_blobs_of_task",
        "origin_id",
        "digest",
        unique=True,
        **_where("origin = 'task' AND status <> 'dropping' AND data_key IS NOT NULL"),
    ),
    Index(
        "uq_blobs_of_operator",
        "federation_id",
        "digest",
        unique=True,
        **_where("origin = 'operator' AND status <> 'dropping' AND data_key IS NOT NULL"),
    ),
)

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
    _one_of("kind", "cost", "reward"),
    # An answer costs once and is paid once.
    UniqueConstraint("update_id", "kind"),
)

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
