"""The columns that a purge empties; unscrubbed.py has all others that can hold words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from coordinator.store import tables as t
from coordinator.store.inventory import ScrubbedKind
from coordinator.store.scrubbing import rows, values
from coordinator.store.scrubbing.rows import Rows
from coordinator.store.scrubbing.values import Empty


@dataclass(frozen=True, slots=True)
class Scrub:
    """A column, the rows of it that a purge looks at, and what is left of each."""

    column: sa.Column[Any]
    kind: ScrubbedKind | None
    """None: it goes without being listed."""
    rows: Rows
    empty: Empty


_c = t.clients.c
SCRUBS: Final = (  # in the order in which the shell locks rows
    Scrub(t.erasures.c.samples, "figure", rows.of_own_requests, values.rows_of_data),
    Scrub(t.erasures.c.audit, "canary", rows.of_own_requests, values.without_canary),
    Scrub(t.lines.c.audit, "figure", rows.of_own_cohorts, values.audited),
    Scrub(t.erasures.c.reason, "failure-reason", rows.of_federation(t.erasures.c.id), values.words),
    Scrub(t.erasures.c.external_ref, "failure-reason", rows.of_federation(t.erasures.c.id), values.words),
    Scrub(t.erasures.c.ruling, "failure-reason", rows.of_federation(t.erasures.c.id), values.with_reason),
    Scrub(t.erasures.c.extension, "failure-reason", rows.of_federation(t.erasures.c.id), values.with_reason),
    Scrub(t.erasure_log.c.data, "failure-reason", rows.of_federation(t.erasure_log.c.erasure_id), values.spoken),
    Scrub(t.deliveries.c.payload, "failure-reason", rows.of_federation(t.deliveries.c.erasure_id), values.spoken),
    Scrub(t.runs.c.reason, "failure-reason", rows.of_runs(t.runs.c.id), values.words),
    Scrub(t.cohorts.c.reason, "failure-reason", rows.of_runs(t.cohorts.c.run_id), values.words),
    Scrub(t.cohorts.c.program_state, "figure", rows.at_rest, values.spoken),
    Scrub(t.cohorts.c.unlearning, "figure", rows.at_rest, values.facts_of_method),
    Scrub(t.tasks.c.failure, "failure-reason", rows.of_clients(t.tasks.c.client_id), values.failed),
    Scrub(t.tasks.c.log_tail, "log-tail", rows.of_clients(t.tasks.c.client_id), values.failed),
    Scrub(t.tasks.c.work, "canary", rows.of_leavers(t.tasks.c.client_id), values.without_canary),
    Scrub(t.jobs.c.params, "figure", rows.computed, values.parameters),
    Scrub(t.jobs.c.error, "failure-reason", rows.of_jobs, values.words),
    Scrub(_c.agent_version, "device", rows.of_leavers(_c.id), values.becomes(None)),
    Scrub(_c.devices, "device", rows.of_leavers(_c.id), values.becomes([])),
    Scrub(_c.canary, "canary", rows.of_leavers(_c.id), values.becomes(None)),
    Scrub(_c.resources, "figure", rows.of_leavers(_c.id), values.becomes(None)),
    Scrub(_c.exclusions, "figure", rows.of_leavers(_c.id), values.becomes(None)),
    Scrub(_c.exclusions_acked, "figure", rows.of_leavers(_c.id), values.becomes(None)),
    Scrub(t.exclusions.c.samples, "figure", rows.of_leavers(t.exclusions.c.client_id), values.becomes([])),
    Scrub(t.exclusions.c.unknown, "figure", rows.of_leavers(t.exclusions.c.client_id), values.becomes([])),
    Scrub(t.exclusions.c.problem, "failure-reason", rows.of_leavers(t.exclusions.c.client_id), values.becomes(None)),
    Scrub(t.updates.c.metrics, "figure", rows.of_updates, values.figures),
    Scrub(t.contributions.c.distance, "figure", rows.of_leavers(t.contributions.c.client_id), values.becomes(None)),
    Scrub(t.contributions.c.factor, "figure", rows.of_leavers(t.contributions.c.client_id), values.becomes(None)),
    Scrub(t.checkpoints.c.metrics, "figure", rows.of_models, values.of_model),
    Scrub(t.journal.c.data, "failure-reason", rows.journalled, values.noted),
    Scrub(t.periods.c.candidates, "figure", rows.of_periods, values.of_others),
    Scrub(t.periods.c.division, "figure", rows.of_periods, values.divided),
    Scrub(t.ledger.c.amounts, "ledger", rows.of_leavers(t.ledger.c.client_id), values.becomes({})),
    Scrub(t.inbox.c.key, None, rows.of_their_inbox, values.key_of_inbox),
)
