"""Runs and the work in them: cohorts, rounds, tasks, updates and jobs."""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
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
    text,
    true,
)

from coordinator.store.tables.columns import Instant, Json, Word, metadata, one_of, where

_CLAIMABLE_OR_LEASED: Final = "status IN ('ready', 'leased')"
_OPEN_TASK: Final = "status IN ('standby', 'ready', 'leased')"
_LEASED_TASK: Final = "status = 'leased'"
_FAILED_TASK: Final = "failure IS NOT NULL"
_OPEN_JOB: Final = "status IN ('ready', 'leased')"
_OPEN_ROUND: Final = "status = 'open'"
# A database uses a partial index only for a query that repeats the index's condition literally: not with a
# parameter, and SQLite not for a narrower condition either. So queries for open work carry these beside their own.
IS_CLAIMABLE_OR_LEASED: Final = text(f"tasks.{_CLAIMABLE_OR_LEASED}")
IS_OPEN_TASK: Final = text(f"tasks.{_OPEN_TASK}")
IS_LEASED_TASK: Final = text(f"tasks.{_LEASED_TASK}")
IS_FAILED_TASK: Final = text(f"tasks.{_FAILED_TASK}")
IS_OPEN_JOB: Final = text(f"jobs.{_OPEN_JOB}")
IS_OPEN_ROUND: Final = text(f"rounds.{_OPEN_ROUND}")

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
    one_of("status", "running", "paused", "completed", "failed", "cancelled"),
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
    one_of("phase", "starting", "waiting", "asking", "computing", "finished", "failed", "retired"),
    one_of("kind", "line", "root", "inner", "leaf", "profile", "merge"),
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
    Column("status", Word(16), nullable=False),
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
    one_of("status", "open", "closed", "abandoned"),
    # A cohort asks once for each round of an epoch: a round that ran twice would be counted twice.
    UniqueConstraint("cohort_id", "epoch", "number", "kind"),
    CheckConstraint("num_open >= 0", name="open_count"),
    Index("ix_rounds_due", "due_at", **where("due_at IS NOT NULL")),
    Index("ix_rounds_open_model", "model_digest", **where(_OPEN_ROUND)),
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
    Column("status", Word(16), nullable=False),
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
    one_of("status", "standby", "ready", "leased", "done", "failed", "revoked"),
    # A client is asked once in a round.
    UniqueConstraint("round_id", "client_id"),
    # A leased task has a token and an end of its lease.
    CheckConstraint("status <> 'leased' OR (lease_token IS NOT NULL AND due_at IS NOT NULL)", name="lease"),
    Index("ix_tasks_claimable", "client_id", **where(_CLAIMABLE_OR_LEASED)),
    Index("ix_tasks_open", "cohort_id", **where(_OPEN_TASK)),
    Index("ix_tasks_due", "due_at", **where(_LEASED_TASK)),
    Index("ix_tasks_of_client", "client_id", "run_id", "round"),
    Index("ix_tasks_failed", "client_id", **where(_FAILED_TASK)),
    # A client has at most one piece of open work of a kind in a cohort.
    Index(
        "uq_tasks_one_open",
        "cohort_id",
        "client_id",
        "kind",
        unique=True,
        **where(_OPEN_TASK),
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
    one_of("status", "buffered", "consumed", "discarded"),
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
    Column("status", Word(16), nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("lease_token", String(64)),
    Column("due_at", Instant),
    Column("attempt", Integer, nullable=False),
    Column("num_failures", Integer, nullable=False),
    Column("error", Text),
    # Named before the bytes are stored: what a kernel made is found even if its result never counted.
    Column("output", String(71)),
    one_of("status", "ready", "leased", "done", "failed", "cancelled"),
    CheckConstraint("(kind = 'kernel') = (kernel IS NOT NULL)", name="kernel_named"),
    Index("ix_jobs_open", "created_at", **where(_OPEN_JOB)),
)
