"""What rows say about a client besides its name, and how an erasure takes it out.

A worker writes more than updates: why it failed and where, what machine it runs on, how well a model does on its data.
Every column that can hold words or figures is listed once: here with the rows and the part of them that a purge
empties, or in unscrubbed.py with the reason why it holds nothing of a client's, or has to stay. A test compares the
lists with the tables, so that a new column cannot be forgotten.

Of a client that leaves, everything of its own goes. Of one that only forgets samples goes what it said before the
fence. Of the models that are purged, and of the updates that others trained from them, go the figures.

Names stay, as docs/erasure.md says. What is taken out is listed by an HMAC under the request's salt: whoever has the
salt and the words can show that they were there, and nobody can guess short ones.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final
from uuid import UUID

import orjson
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.engine.entities import SETTLED, AffectedCohort, Cohort
from coordinator.engine.erasure.stages import AuditReport, Unlearn
from coordinator.store import tables as t
from coordinator.store import warm
from coordinator.store.codecs import CODECS
from coordinator.store.inventory import BATCH, ErasureRecord, FoundArtefact, ScrubbedKind, batched

SCRUBBED: Final = "(scrubbed: it was about a client that was erased)"
"""Stands in place of words that were taken out of a sentence's place."""
_EVERY_EPOCH: Final = 2**31 - 1
PAGE: Final = 500
"""Rows in memory at a time."""
_SEEN: Final = frozenset({"id", "client_id", "cohort_id", "epoch", "type", "action", "made"})
"""Columns that say whose a row is."""
_OF_OTHERS: Final = ("validation_", "clients_", "num_")
"""Begin the names of figures of a mended model that no leaver reported."""


@dataclass(frozen=True, slots=True)
class ScrubScope:
    """What a purge takes out is about."""

    erasure_id: UUID
    federation_id: UUID
    client_ids: frozenset[UUID]
    names: frozenset[str]
    stays: bool
    """Whether the clients go on, without some samples."""
    last_epochs: dict[UUID, int]
    """The last epoch with them, by cohort: what was said and computed there up to it was with them."""
    run_ids: frozenset[UUID]
    model_ids: frozenset[UUID]
    """Models that are purged."""
    mended_ids: frozenset[UUID]
    """Models that a method made to forget the clients: they stay, without figures that the clients reported."""
    update_ids: frozenset[UUID]
    task_ids: set[UUID] = field(default_factory=set)
    """The clients' tasks that were emptied."""

    def is_own(self, row: Any) -> bool:
        """Whether a row with a client, a cohort and an epoch is the leavers' own."""
        return row.client_id in self.client_ids and (not self.stays or self.was_with_them(row))

    def was_with_them(self, row: Any) -> bool:
        return bool(row.epoch <= self.last_epochs.get(row.cohort_id, -1))

    def is_mentioned(self, words: str) -> bool:
        return is_mentioned(self.names, words)


Empty = Callable[[Any, Any, ScrubScope], Any]
"""(value, its row, who leaves) -> what stays of the value; the same value when nothing has to go."""


@dataclass(frozen=True, slots=True)
class Scrub:
    """A column, the rows of it that a purge looks at, and what is left of each."""

    column: sa.Column[Any]
    kind: ScrubbedKind | None
    """None: it goes without being listed."""
    rows: Callable[[ScrubScope], Iterator[sa.ColumnElement[bool]]]
    empty: Empty


# --- which rows -------------------------------------------------------------------------------------------------------


def _of_clients(column: sa.Column[Any]) -> Callable[[ScrubScope], Iterator[sa.ColumnElement[bool]]]:
    return lambda scope: (column.in_(ids) for ids in batched(sorted(scope.client_ids), BATCH))


def _of_leavers(column: sa.Column[Any]) -> Callable[[ScrubScope], Iterator[sa.ColumnElement[bool]]]:
    """The clients' rows, only when they leave for good."""
    return lambda scope: iter(()) if scope.stays else _of_clients(column)(scope)


def _of_models(scope: ScrubScope) -> Iterator[sa.ColumnElement[bool]]:
    concerned = sorted(scope.model_ids | scope.mended_ids)
    return (t.checkpoints.c.id.in_(ids) for ids in batched(concerned, PAGE))


def _of_updates(scope: ScrubScope) -> Iterator[sa.ColumnElement[bool]]:
    """Updates of the leavers, those that were trained from tainted models, and what these were judged by."""
    u, x = t.updates.c, t.checkpoints.c
    yield from _of_clients(u.client_id)(scope)
    for ids in batched(sorted(scope.update_ids), PAGE):
        yield u.id.in_(ids)
    for ids in batched(sorted(scope.model_ids), BATCH):
        is_judged = (x.cohort_id == u.cohort_id) & (x.digest == u.base_digest) & x.id.in_(ids)
        yield u.run_id.in_(scope.run_ids) & u.digest.is_(None) & sa.exists().where(is_judged)


def _of_runs(column: sa.Column[Any]) -> Callable[[ScrubScope], Iterator[sa.ColumnElement[bool]]]:
    return lambda scope: (column.in_(ids) for ids in batched(sorted(scope.run_ids), BATCH))


def _journalled(scope: ScrubScope) -> Iterator[sa.ColumnElement[bool]]:
    """Whatever says why, and models with their figures."""
    says = sa.cast(t.journal.c.data, sa.Text)
    for of_run in _of_runs(t.journal.c.run_id)(scope):
        yield of_run & (says.contains('"reason"') | says.contains('"error"') | says.contains('"metrics"'))


def _computed(scope: ScrubScope) -> Iterator[sa.ColumnElement[bool]]:
    for of_run in _of_runs(t.jobs.c.run_id)(scope):
        yield of_run & t.jobs.c.status.in_(("done", "failed", "cancelled")) & (t.jobs.c.kind == "kernel")


def _of_jobs(scope: ScrubScope) -> Iterator[sa.ColumnElement[bool]]:
    yield t.jobs.c.federation_id == scope.federation_id


def _at_rest(scope: ScrubScope) -> Iterator[sa.ColumnElement[bool]]:
    for of_run in _of_runs(t.cohorts.c.run_id)(scope):
        yield of_run & t.cohorts.c.phase.in_(("finished", "failed", "retired"))


def _of_federation(column: sa.Column[Any]) -> Callable[[ScrubScope], Iterator[sa.ColumnElement[bool]]]:
    """Rows of requests to forget; whose they are says the request."""

    def rows(scope: ScrubScope) -> Iterator[sa.ColumnElement[bool]]:
        requests = sa.select(t.erasures.c.id).where(t.erasures.c.federation_id == scope.federation_id)
        yield column.in_(requests)

    return rows


def _of_own_requests(scope: ScrubScope) -> Iterator[sa.ColumnElement[bool]]:
    """About a client that leaves for good: this one, and those that are over."""
    e, s = t.erasures.c, t.subjects.c
    for ids in batched(sorted(scope.client_ids), BATCH) if not scope.stays else ():
        is_over = (e.id == scope.erasure_id) | e.status.in_(SETTLED)
        yield is_over & sa.exists().where(s.erasure_id == e.id, s.client_id.in_(ids))


def _of_own_cohorts(scope: ScrubScope) -> Iterator[sa.ColumnElement[bool]]:
    for own in _of_own_requests(scope):
        yield t.lines.c.erasure_id.in_(sa.select(t.erasures.c.id).where(own))


def _of_periods(scope: ScrubScope) -> Iterator[sa.ColumnElement[bool]]:
    if not scope.stays:
        yield t.periods.c.federation_id == scope.federation_id


def _of_their_inbox(scope: ScrubScope) -> Iterator[sa.ColumnElement[bool]]:
    names = [] if scope.stays else [f"client:{client_id}" for client_id in sorted(scope.client_ids)]
    return (t.inbox.c.principal.in_(some) for some in batched(names, BATCH))


# --- what is left -----------------------------------------------------------------------------------------------------


def _becomes(nothing: Any) -> Empty:
    return lambda value, row, scope: nothing


def _failed(value: Any, row: Any, scope: ScrubScope) -> Any:
    if not scope.is_own(row):
        return value
    scope.task_ids.add(row.id)
    return None


def _figures(value: Any, row: Any, scope: ScrubScope) -> Any:
    is_others = row.client_id in scope.client_ids and not scope.is_own(row) and row.id not in scope.update_ids
    return value if is_others else {}


def _judged(figures: dict[str, Any], model_id: UUID, scope: ScrubScope) -> dict[str, Any]:
    """What is left of a model's figures."""
    if model_id in scope.mended_ids:
        return {name: figure for name, figure in figures.items() if name.startswith(_OF_OTHERS)}
    return {} if model_id in scope.model_ids else figures


def _audited(value: Any, row: Any, scope: ScrubScope) -> Any:
    """The certificate publishes the figures of cohorts that a method mended; all others have served their purpose."""
    if value is None or row.action == "unlearned":
        return value
    codec = CODECS[AffectedCohort]["audit"]
    report: AuditReport = codec.read(value)
    leavers = {name: own for name, own in report.leavers.items() if name not in scope.names}
    checks = [check for check in report.checks if check.client not in scope.names]
    left = tuple(replace(check, why=_words(check.why, row, scope)) for check in checks)
    scrubbed = replace(report, leavers=leavers, checks=left)
    return value if scrubbed == report else codec.write(scrubbed)


def _facts_of_method(value: Any, row: Any, scope: ScrubScope) -> Any:
    """What a method was told of the leavers: their part in the cohort's models, and why it gave up."""
    if value is None or scope.stays:
        return value
    codec = CODECS[Cohort]["unlearning"]
    stage: Unlearn = codec.read(value)
    facts = replace(
        stage.facts,
        params=_without(stage.facts.params, scope),
        participants=tuple(one for one in stage.facts.participants if one.client not in scope.names),
        movements=tuple(one for one in stage.facts.movements if one.client not in scope.names),
    )
    scrubbed = replace(stage, facts=facts, stopped=stage.stopped and _words(stage.stopped, row, scope))
    return value if scrubbed == stage else codec.write(scrubbed)


def _words(value: Any, row: Any, scope: ScrubScope) -> Any:
    return SCRUBBED if not scope.stays and scope.is_mentioned(value) else value


def _with_reason(value: Any, row: Any, scope: ScrubScope) -> Any:
    """What somebody decided about a request, and why."""
    return {**value, "reason": _words(value["reason"], row, scope)} if value and value["reason"] else value


def _spoken(value: Any, row: Any, scope: ScrubScope) -> Any:
    """JSON of a request's log: sentences that mention a leaver."""
    return value if scope.stays else _without(value, scope)


def _noted(value: Any, row: Any, scope: ScrubScope) -> Any:
    """A journal's entry: why tasks of the leavers failed, figures of purged models, sentences about a leaver."""
    if row.type == "CheckpointPublished":
        return {**value, "metrics": _judged(value["metrics"], UUID(value["checkpoint_id"]), scope)}
    if "task_id" in value:
        is_own = "reason" in value and UUID(value["task_id"]) in scope.task_ids
        return {**value, "reason": SCRUBBED} if is_own else value
    return _spoken(value, row, scope)


def _parameters(value: Any, row: Any, scope: ScrubScope) -> Any:
    """The parameters of a kernel that has run: weights, figures and times by client. Nothing reads them again."""
    is_theirs = scope.was_with_them(row) or (not scope.stays and _without(value, scope) != value)
    return {} if is_theirs else value


def _without(value: Any, scope: ScrubScope) -> Any:
    """JSON without a leaver's part: entries that are keyed by its name, or are its own in a list; and with sentences
    that mention it replaced. The name alone stays."""
    match value:
        case dict():
            kept = {key: one for key, one in value.items() if scope.names.isdisjoint(key.split(":"))}
            return {key: _without(one, scope) for key, one in kept.items()}
        case list():
            others = (one for one in value if not isinstance(one, dict) or one.get("client") not in scope.names)
            return [_without(one, scope) for one in others]
        case str() if value not in scope.names and scope.is_mentioned(value):
            return SCRUBBED
    return value


def _rows_of_data(value: Any, row: Any, scope: ScrubScope) -> Any:
    return {name: samples for name, samples in value.items() if name not in scope.names}


def _without_canary(value: Any, row: Any, scope: ScrubScope) -> Any:
    return {**value, "canary": None} if value and value.get("canary") is not None else value


def _divided(value: Any, row: Any, scope: ScrubScope) -> Any:
    """Of a period: shares and utilities were made of all clients' figures, so they go with those of one."""
    if scope.names.isdisjoint(value["jobs"]):
        return value
    others = {name: job for name, job in value["jobs"].items() if name not in scope.names}
    return {**value, "jobs": others, "populations": [], "total_utility": 0.0}


def _of_others(value: Any, row: Any, scope: ScrubScope) -> Any:
    """Of a period: the figures of those who stay."""
    return [one for one in value if one["client"] not in scope.names]


def is_mentioned(names: frozenset[str], words: str) -> bool:
    """Whether one of the names is there as a whole word: a name may be a part of another."""
    either = "|".join(map(re.escape, sorted(names)))
    return bool(names) and re.search(rf"(?<![\w.-])(?:{either})(?![\w-]|\.\w)", words) is not None


# --- the lists --------------------------------------------------------------------------------------------------------

_c = t.clients.c
SCRUBS: Final = (  # in the order in which the shell locks rows
    Scrub(t.erasures.c.samples, "figure", _of_own_requests, _rows_of_data),
    Scrub(t.erasures.c.audit, "canary", _of_own_requests, _without_canary),
    Scrub(t.lines.c.audit, "figure", _of_own_cohorts, _audited),
    Scrub(t.erasures.c.reason, "failure-reason", _of_federation(t.erasures.c.id), _words),
    Scrub(t.erasures.c.external_ref, "failure-reason", _of_federation(t.erasures.c.id), _words),
    Scrub(t.erasures.c.ruling, "failure-reason", _of_federation(t.erasures.c.id), _with_reason),
    Scrub(t.erasures.c.extension, "failure-reason", _of_federation(t.erasures.c.id), _with_reason),
    Scrub(t.erasure_log.c.data, "failure-reason", _of_federation(t.erasure_log.c.erasure_id), _spoken),
    Scrub(t.deliveries.c.payload, "failure-reason", _of_federation(t.deliveries.c.erasure_id), _spoken),
    Scrub(t.runs.c.reason, "failure-reason", _of_runs(t.runs.c.id), _words),
    Scrub(t.cohorts.c.reason, "failure-reason", _of_runs(t.cohorts.c.run_id), _words),
    Scrub(t.cohorts.c.program_state, "figure", _at_rest, _spoken),
    Scrub(t.cohorts.c.unlearning, "figure", _at_rest, _facts_of_method),
    Scrub(t.tasks.c.failure, "failure-reason", _of_clients(t.tasks.c.client_id), _failed),
    Scrub(t.tasks.c.log_tail, "log-tail", _of_clients(t.tasks.c.client_id), _failed),
    Scrub(t.tasks.c.work, "canary", _of_leavers(t.tasks.c.client_id), _without_canary),
    Scrub(t.jobs.c.params, "figure", _computed, _parameters),
    Scrub(t.jobs.c.error, "failure-reason", _of_jobs, _words),
    Scrub(_c.agent_version, "device", _of_leavers(_c.id), _becomes(None)),
    Scrub(_c.devices, "device", _of_leavers(_c.id), _becomes([])),
    Scrub(_c.canary, "canary", _of_leavers(_c.id), _becomes(None)),
    Scrub(_c.resources, "figure", _of_leavers(_c.id), _becomes(None)),
    Scrub(_c.exclusions, "figure", _of_leavers(_c.id), _becomes(None)),
    Scrub(_c.exclusions_acked, "figure", _of_leavers(_c.id), _becomes(None)),
    Scrub(t.exclusions.c.samples, "figure", _of_leavers(t.exclusions.c.client_id), _becomes([])),
    Scrub(t.exclusions.c.unknown, "figure", _of_leavers(t.exclusions.c.client_id), _becomes([])),
    Scrub(t.exclusions.c.problem, "failure-reason", _of_leavers(t.exclusions.c.client_id), _becomes(None)),
    Scrub(t.updates.c.metrics, "figure", _of_updates, _figures),
    Scrub(t.contributions.c.distance, "figure", _of_leavers(t.contributions.c.client_id), _becomes(None)),
    Scrub(t.contributions.c.factor, "figure", _of_leavers(t.contributions.c.client_id), _becomes(None)),
    Scrub(t.checkpoints.c.metrics, "figure", _of_models, lambda value, row, scope: _judged(value, row.id, scope)),
    Scrub(t.journal.c.data, "failure-reason", _journalled, _noted),
    Scrub(t.periods.c.candidates, "figure", _of_periods, _of_others),
    Scrub(t.periods.c.division, "figure", _of_periods, _divided),
    Scrub(t.ledger.c.amounts, "ledger", _of_leavers(t.ledger.c.client_id), _becomes({})),
    Scrub(t.inbox.c.key, None, _of_their_inbox, lambda value, row, scope: f"scrubbed {row.made}"),
)

_AFTER_RUNS: Final = next(place for place, one in enumerate(SCRUBS) if one.column.table is t.cohorts)
"""When the cohorts of the runs are locked."""


# --- the purge's step -------------------------------------------------------------------------------------------------


async def scrub(
    connection: AsyncConnection, found: ErasureRecord, artefacts: Collection[FoundArtefact]
) -> list[FoundArtefact]:
    """Take out of rows what a request's clients said and what was measured of them; returns what was taken out."""
    scope = await _scope_of(connection, found, artefacts)
    salt, taken = bytes.fromhex(found.erasure.salt), list[FoundArtefact]()
    for place, one in enumerate(SCRUBS):
        if place == _AFTER_RUNS:
            for of_run in _of_runs(t.cohorts.c.run_id)(scope):
                await warm.renew(connection, of_run)
        for rows in one.rows(scope):
            taken += await _scrub_column(connection, one, rows, scope, salt)
    return taken


async def unscrubbed(connection: AsyncConnection) -> list[UUID]:
    """Requests that an older release completed without scrubbing: the client's agent is still named."""
    e, s = t.erasures.c, t.subjects.c
    statement = (
        sa.select(e.id)
        .join(t.subjects, s.erasure_id == e.id)
        .join(t.clients, t.clients.c.id == s.client_id)
        .where(e.status == "completed", e.scope == "client", e.duplicate_of.is_(None))
        .where(t.clients.c.status == "erased", t.clients.c.agent_version.is_not(None))
        .distinct()
    )
    return sorted((await connection.execute(statement)).scalars())


async def _scope_of(
    connection: AsyncConnection, found: ErasureRecord, artefacts: Collection[FoundArtefact]
) -> ScrubScope:
    client_ids = frozenset(s.client_id for s in found.subjects)
    stays = found.erasure.scope == "samples"
    if stays:  # who was erased since then has left for good, by another request
        c = t.clients.c
        active = sa.select(c.id).where(c.id.in_(client_ids), c.status != "erased")
        client_ids = frozenset((await connection.execute(active)).scalars())
    of_members = (
        sa.select(t.cohorts.c.id, t.cohorts.c.run_id, t.cohorts.c.phase)
        .join(t.members, t.members.c.cohort_id == t.cohorts.c.id)
        .where(t.members.c.client_id.in_(client_ids))
        .distinct()
    )
    cohorts = (await connection.execute(of_members)).all()
    over = {row.id: _EVERY_EPOCH for row in cohorts if row.phase == "retired" or not stays}
    x = t.checkpoints.c
    mended = sa.select(x.id, x.forgets).where(
        x.kind == "forgotten", x.cohort_id.in_([c.cohort_id for c in found.affected])
    )
    written = {str(client_id) for client_id in client_ids}
    mended_ids = [row.id for row in await connection.execute(mended) if not written.isdisjoint(row.forgets)]
    return ScrubScope(
        erasure_id=found.erasure.id,
        federation_id=found.erasure.federation_id,
        client_ids=client_ids,
        names=frozenset(s.name for s in found.subjects if s.client_id in client_ids),
        stays=stays,
        last_epochs={**over, **{one.cohort_id: one.epoch_before for one in found.affected}},
        run_ids=frozenset(row.run_id for row in cohorts) | {one.run_id for one in found.affected},
        model_ids=frozenset(a.row_id for a in artefacts if a.kind in ("checkpoint", "merge") and a.row_id is not None),
        mended_ids=frozenset(mended_ids),
        update_ids=frozenset(a.row_id for a in artefacts if a.kind == "update" and a.row_id is not None),
    )


async def _scrub_column(
    connection: AsyncConnection, one: Scrub, rows: sa.ColumnElement[bool], scope: ScrubScope, salt: bytes
) -> list[FoundArtefact]:
    """Page by page, in the order of the keys."""
    column, table, taken = one.column, one.column.table, list[FoundArtefact]()
    keys = list(table.primary_key.columns)
    shown = [c for c in table.columns if c.primary_key or c is column or c.name in _SEEN]
    change = (
        sa.update(table)
        .where(*(key == sa.bindparam(f"_{key.name}", type_=key.type) for key in keys))
        .values({column.name: sa.bindparam("_left", type_=column.type)})
    )
    after: tuple[Any, ...] | None = None
    while True:
        page = sa.select(*shown).where(rows, column.is_not(None)).order_by(*keys).limit(PAGE)
        if after is not None:
            page = page.where(sa.tuple_(*keys) > sa.tuple_(*map(sa.literal, after, (key.type for key in keys))))
        found = (await connection.execute(page)).all()
        changes = []
        for row in found:
            value = getattr(row, column.name)
            left = one.empty(value, row, scope)
            if left != value:
                key = {f"_{key.name}": getattr(row, key.name) for key in keys}
                changes.append({**key, "_left": left})
                if one.kind is not None:
                    taken.append(FoundArtefact(one.kind, _digest(salt, column, key, value), disposition="scrubbed"))
        if changes:
            await connection.execute(change, changes)
            await asyncio.sleep(0)  # SQLite answers on the event loop: others have their turn
        if len(found) < PAGE:
            return taken
        after = tuple(getattr(found[-1], key.name) for key in keys)


def _digest(salt: bytes, column: sa.Column[Any], key: dict[str, Any], value: Any) -> str:
    """The keyed digest of what was in one column of one row."""
    written = orjson.dumps([str(column), [str(part) for part in key.values()], value])
    return "sha256:" + hmac.new(salt, written, hashlib.sha256).hexdigest()
