"""Which rows of a column a purge looks at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import sqlalchemy as sa

from coordinator.engine.entities import SETTLED
from coordinator.store import tables as t
from coordinator.store.inventory import BATCH, batched
from coordinator.store.scrubbing.scope import ScrubScope

PAGE: Final = 500
"""Rows in memory at a time."""
Conditions = Iterator[sa.ColumnElement[bool]]
"""Each finds some of the rows: what is asked for does not fit into one statement."""
Rows = Callable[[ScrubScope], Conditions]


def of_clients(column: sa.Column[Any]) -> Rows:
    return lambda scope: (column.in_(ids) for ids in batched(sorted(scope.client_ids), BATCH))


def of_leavers(column: sa.Column[Any]) -> Rows:
    """The clients' rows, only when they leave for good."""
    return lambda scope: iter(()) if scope.stays else of_clients(column)(scope)


def of_models(scope: ScrubScope) -> Conditions:
    concerned = sorted(scope.model_ids | scope.mended_ids)
    return (t.checkpoints.c.id.in_(ids) for ids in batched(concerned, PAGE))


def of_updates(scope: ScrubScope) -> Conditions:
    """Updates of the leavers, those that were trained from tainted models, and what these were judged by."""
    u, x = t.updates.c, t.checkpoints.c
    yield from of_clients(u.client_id)(scope)
    for ids in batched(sorted(scope.update_ids), PAGE):
        yield u.id.in_(ids)
    for ids in batched(sorted(scope.model_ids), BATCH):
        is_judged = (x.cohort_id == u.cohort_id) & (x.digest == u.base_digest) & x.id.in_(ids)
        yield u.run_id.in_(scope.run_ids) & u.digest.is_(None) & sa.exists().where(is_judged)


def of_runs(column: sa.Column[Any]) -> Rows:
    return lambda scope: (column.in_(ids) for ids in batched(sorted(scope.run_ids), BATCH))


def journalled(scope: ScrubScope) -> Conditions:
    """Whatever says why, and models with their figures."""
    says = sa.cast(t.journal.c.data, sa.Text)
    for of_run in of_runs(t.journal.c.run_id)(scope):
        yield of_run & (says.contains('"reason"') | says.contains('"error"') | says.contains('"metrics"'))


def computed(scope: ScrubScope) -> Conditions:
    for of_run in of_runs(t.jobs.c.run_id)(scope):
        yield of_run & t.jobs.c.status.in_(("done", "failed", "cancelled")) & (t.jobs.c.kind == "kernel")


def of_jobs(scope: ScrubScope) -> Conditions:
    yield t.jobs.c.federation_id == scope.federation_id


def at_rest(scope: ScrubScope) -> Conditions:
    for of_run in of_runs(t.cohorts.c.run_id)(scope):
        yield of_run & t.cohorts.c.phase.in_(("finished", "failed", "retired"))


def of_federation(column: sa.Column[Any]) -> Rows:
    """Rows of requests to forget; whose they are says the request."""

    def rows(scope: ScrubScope) -> Conditions:
        requests = sa.select(t.erasures.c.id).where(t.erasures.c.federation_id == scope.federation_id)
        yield column.in_(requests)

    return rows


def of_own_requests(scope: ScrubScope) -> Conditions:
    """About a client that leaves for good: this one, and those that are over."""
    e, s = t.erasures.c, t.subjects.c
    for ids in batched(sorted(scope.client_ids), BATCH) if not scope.stays else ():
        is_over = (e.id == scope.erasure_id) | e.status.in_(SETTLED)
        yield is_over & sa.exists().where(s.erasure_id == e.id, s.client_id.in_(ids))


def of_own_cohorts(scope: ScrubScope) -> Conditions:
    for own in of_own_requests(scope):
        yield t.lines.c.erasure_id.in_(sa.select(t.erasures.c.id).where(own))


def of_periods(scope: ScrubScope) -> Conditions:
    if not scope.stays:
        yield t.periods.c.federation_id == scope.federation_id


def of_their_inbox(scope: ScrubScope) -> Conditions:
    names = [] if scope.stays else [f"client:{client_id}" for client_id in sorted(scope.client_ids)]
    return (t.inbox.c.principal.in_(some) for some in batched(names, BATCH))
