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
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

import orjson
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.engine.entities import SETTLED
from coordinator.store import tables as t
from coordinator.store.inventory import BATCH, Dossier, Found, ScrubbedKind, batched

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
class Leaving:
    """What a purge takes out is about."""

    erasure_id: UUID
    federation_id: UUID
    client_ids: frozenset[UUID]
    names: frozenset[str]
    stays: bool
    """Whether the clients go on, without some samples."""
    last_epochs: dict[UUID, int]
    """By cohort: what was said and computed there up to this epoch was with them."""
    run_ids: frozenset[UUID]
    model_ids: frozenset[UUID]
    """Purged."""
    mended_ids: frozenset[UUID]
    """Of models that a method made to forget the clients: they stay, with figures that the clients reported."""
    update_ids: frozenset[UUID]
    task_ids: set[UUID] = field(default_factory=set)
    """Of the clients' tasks that were emptied."""

    def is_own(self, row: Any) -> bool:
        """Of a row with a client, a cohort and an epoch."""
        return row.client_id in self.client_ids and (not self.stays or self.was_with_them(row))

    def was_with_them(self, row: Any) -> bool:
        return bool(row.epoch <= self.last_epochs.get(row.cohort_id, -1))

    def is_mentioned(self, words: str) -> bool:
        return bool(_names_in(self.names).search(words)) if self.names else False


Empty = Callable[[Any, Any, Leaving], Any]
"""(value, its row, who leaves) -> what stays of the value; the same value when nothing has to go."""


@dataclass(frozen=True, slots=True)
class Scrub:
    """A column, the rows of it that a purge looks at, and what is left of each."""

    column: sa.Column[Any]
    kind: ScrubbedKind | None
    """None: it goes without being listed."""
    rows: Callable[[Leaving], Iterator[sa.ColumnElement[bool]]]
    empty: Empty


# --- which rows -------------------------------------------------------------------------------------------------------


def _of_clients(column: sa.Column[Any]) -> Callable[[Leaving], Iterator[sa.ColumnElement[bool]]]:
    return lambda leaving: (column.in_(ids) for ids in batched(sorted(leaving.client_ids), BATCH))


def _of_leavers(column: sa.Column[Any]) -> Callable[[Leaving], Iterator[sa.ColumnElement[bool]]]:
    """Only when they leave for good."""
    return lambda leaving: iter(()) if leaving.stays else _of_clients(column)(leaving)


def _of_models(leaving: Leaving) -> Iterator[sa.ColumnElement[bool]]:
    concerned = sorted(leaving.model_ids | leaving.mended_ids)
    return (t.checkpoints.c.id.in_(ids) for ids in batched(concerned, PAGE))


def _of_updates(leaving: Leaving) -> Iterator[sa.ColumnElement[bool]]:
    """Those of the leavers, those that were trained from tainted models, and what these were judged by."""
    u, x = t.updates.c, t.checkpoints.c
    yield from _of_clients(u.client_id)(leaving)
    for ids in batched(sorted(leaving.update_ids), PAGE):
        yield u.id.in_(ids)
    for ids in batched(sorted(leaving.model_ids), BATCH):
        is_judged = (x.cohort_id == u.cohort_id) & (x.digest == u.base_digest) & x.id.in_(ids)
        yield u.run_id.in_(leaving.run_ids) & u.digest.is_(None) & sa.exists().where(is_judged)


def _of_runs(column: sa.Column[Any]) -> Callable[[Leaving], Iterator[sa.ColumnElement[bool]]]:
    return lambda leaving: (column.in_(ids) for ids in batched(sorted(leaving.run_ids), BATCH))


def _journalled(leaving: Leaving) -> Iterator[sa.ColumnElement[bool]]:
    """Whatever says why, and models with their figures."""
    says = sa.cast(t.journal.c.data, sa.Text)
    for of_run in _of_runs(t.journal.c.run_id)(leaving):
        yield of_run & (says.contains('"reason"') | says.contains('"error"') | says.contains('"metrics"'))


def _computed(leaving: Leaving) -> Iterator[sa.ColumnElement[bool]]:
    for of_run in _of_runs(t.jobs.c.run_id)(leaving):
        yield of_run & t.jobs.c.status.in_(("done", "failed", "cancelled")) & (t.jobs.c.kind == "kernel")


def _of_jobs(leaving: Leaving) -> Iterator[sa.ColumnElement[bool]]:
    yield t.jobs.c.federation_id == leaving.federation_id


def _at_rest(leaving: Leaving) -> Iterator[sa.ColumnElement[bool]]:
    for of_run in _of_runs(t.cohorts.c.run_id)(leaving):
        yield of_run & t.cohorts.c.phase.in_(("finished", "failed", "retired"))


def _of_federation(column: sa.Column[Any]) -> Callable[[Leaving], Iterator[sa.ColumnElement[bool]]]:
    """Rows of requests to forget; whose they are says the request."""

    def rows(leaving: Leaving) -> Iterator[sa.ColumnElement[bool]]:
        requests = sa.select(t.erasures.c.id).where(t.erasures.c.federation_id == leaving.federation_id)
        yield column.in_(requests)

    return rows


def _of_own_requests(leaving: Leaving) -> Iterator[sa.ColumnElement[bool]]:
    """About a client that leaves for good: this one, and those that are over."""
    e, s = t.erasures.c, t.subjects.c
    for ids in batched(sorted(leaving.client_ids), BATCH) if not leaving.stays else ():
        is_over = (e.id == leaving.erasure_id) | e.status.in_(SETTLED)
        yield is_over & sa.exists().where(s.erasure_id == e.id, s.client_id.in_(ids))


def _of_own_lines(leaving: Leaving) -> Iterator[sa.ColumnElement[bool]]:
    for own in _of_own_requests(leaving):
        yield t.lines.c.erasure_id.in_(sa.select(t.erasures.c.id).where(own))


def _of_their_inbox(leaving: Leaving) -> Iterator[sa.ColumnElement[bool]]:
    names = [] if leaving.stays else [f"client:{client_id}" for client_id in sorted(leaving.client_ids)]
    return (t.inbox.c.principal.in_(some) for some in batched(names, BATCH))


# --- what is left -----------------------------------------------------------------------------------------------------


def _becomes(nothing: Any) -> Empty:
    return lambda value, row, leaving: nothing


def _failed(value: Any, row: Any, leaving: Leaving) -> Any:
    if not leaving.is_own(row):
        return value
    leaving.task_ids.add(row.id)
    return None


def _figures(value: Any, row: Any, leaving: Leaving) -> Any:
    is_others = row.client_id in leaving.client_ids and not leaving.is_own(row) and row.id not in leaving.update_ids
    return value if is_others else {}


def _judged(figures: dict[str, Any], model_id: UUID, leaving: Leaving) -> dict[str, Any]:
    """Of a model."""
    if model_id in leaving.mended_ids:
        return {name: figure for name, figure in figures.items() if name.startswith(_OF_OTHERS)}
    return {} if model_id in leaving.model_ids else figures


def _audited(value: Any, row: Any, leaving: Leaving) -> Any:
    """The certificate publishes the figures of lines that a method mended; all others have served their purpose."""
    return value if row.action == "unlearned" else _without(value, leaving)


def _words(value: Any, row: Any, leaving: Leaving) -> Any:
    return SCRUBBED if not leaving.stays and leaving.is_mentioned(value) else value


def _spoken(value: Any, row: Any, leaving: Leaving) -> Any:
    """JSON of a request's log: sentences that mention a leaver."""
    return value if leaving.stays else _without(value, leaving)


def _noted(value: Any, row: Any, leaving: Leaving) -> Any:
    """A journal's entry: why tasks of the leavers failed, figures of purged models, sentences about a leaver."""
    if row.type == "CheckpointPublished":
        return {**value, "metrics": _judged(value["metrics"], UUID(value["checkpoint_id"]), leaving)}
    if "task_id" in value:
        is_own = "reason" in value and UUID(value["task_id"]) in leaving.task_ids
        return {**value, "reason": SCRUBBED} if is_own else value
    return _spoken(value, row, leaving)


def _parameters(value: Any, row: Any, leaving: Leaving) -> Any:
    """Of a kernel that has run: weights, figures and times by client. Nothing reads them again."""
    is_theirs = leaving.was_with_them(row) or (not leaving.stays and _without(value, leaving) != value)
    return {} if is_theirs else value


def _without(value: Any, leaving: Leaving) -> Any:
    """JSON without a leaver's part: entries that are keyed by its name, or are its own in a list; and with sentences
    that mention it replaced. The name alone stays."""
    match value:
        case dict():
            kept = {key: one for key, one in value.items() if leaving.names.isdisjoint(key.split(":"))}
            return {key: _without(one, leaving) for key, one in kept.items()}
        case list():
            others = (one for one in value if not isinstance(one, dict) or one.get("client") not in leaving.names)
            return [_without(one, leaving) for one in others]
        case str() if value not in leaving.names and leaving.is_mentioned(value):
            return SCRUBBED
    return value


def _rows_of_data(value: Any, row: Any, leaving: Leaving) -> Any:
    return {name: samples for name, samples in value.items() if name not in leaving.names}


def _without_canary(value: Any, row: Any, leaving: Leaving) -> Any:
    return {**value, "canary": None} if value and value.get("canary") is not None else value


def _names_in(names: frozenset[str]) -> re.Pattern[str]:
    """As whole words: a name may be a part of another."""
    return re.compile(rf"(?<![\w.-])(?:{'|'.join(map(re.escape, sorted(names)))})(?![\w-]|\.\w)")


# --- the lists --------------------------------------------------------------------------------------------------------

_c = t.clients.c
SCRUBS: Final = (  # in the order in which the shell locks rows
    Scrub(t.erasures.c.samples, "figure", _of_own_requests, _rows_of_data),
    Scrub(t.erasures.c.audit, "canary", _of_own_requests, _without_canary),
    Scrub(t.lines.c.audit, "figure", _of_own_lines, _audited),
    Scrub(t.erasures.c.reason, "failure-reason", _of_federation(t.erasures.c.id), _words),
    Scrub(t.erasure_log.c.data, "failure-reason", _of_federation(t.erasure_log.c.erasure_id), _spoken),
    Scrub(t.deliveries.c.payload, "failure-reason", _of_federation(t.deliveries.c.erasure_id), _spoken),
    Scrub(t.runs.c.reason, "failure-reason", _of_runs(t.runs.c.id), _words),
    Scrub(t.cohorts.c.reason, "failure-reason", _of_runs(t.cohorts.c.run_id), _words),
    Scrub(t.cohorts.c.program_state, "figure", _at_rest, _spoken),
    Scrub(t.cohorts.c.unlearning, "figure", _at_rest, _spoken),
    Scrub(t.tasks.c.failure, "failure-reason", _of_clients(t.tasks.c.client_id), _failed),
    Scrub(t.tasks.c.log_tail, "log-tail", _of_clients(t.tasks.c.client_id), _failed),
    Scrub(t.tasks.c.work, "canary", _of_leavers(t.tasks.c.client_id), _without_canary),
    Scrub(t.jobs.c.params, "figure", _computed, _parameters),
    Scrub(t.jobs.c.error, "failure-reason", _of_jobs, _words),
    Scrub(_c.agent_version, "device", _of_leavers(_c.id), _becomes(None)),
    Scrub(_c.devices, "device", _of_leavers(_c.id), _becomes([])),
    Scrub(_c.canary, "canary", _of_leavers(_c.id), _becomes(None)),
    Scrub(_c.exclusions, "figure", _of_leavers(_c.id), _becomes(None)),
    Scrub(_c.exclusions_acked, "figure", _of_leavers(_c.id), _becomes(None)),
    Scrub(t.exclusions.c.samples, "figure", _of_leavers(t.exclusions.c.client_id), _becomes([])),
    Scrub(t.exclusions.c.unknown, "figure", _of_leavers(t.exclusions.c.client_id), _becomes([])),
    Scrub(t.exclusions.c.problem, "failure-reason", _of_leavers(t.exclusions.c.client_id), _becomes(None)),
    Scrub(t.updates.c.metrics, "figure", _of_updates, _figures),
    Scrub(t.contributions.c.distance, "figure", _of_leavers(t.contributions.c.client_id), _becomes(None)),
    Scrub(t.contributions.c.factor, "figure", _of_leavers(t.contributions.c.client_id), _becomes(None)),
    Scrub(t.checkpoints.c.metrics, "figure", _of_models, lambda value, row, leaving: _judged(value, row.id, leaving)),
    Scrub(t.journal.c.data, "failure-reason", _journalled, _noted),
    Scrub(t.inbox.c.key, None, _of_their_inbox, lambda value, row, leaving: f"scrubbed {row.made}"),
)


# --- the purge's step -------------------------------------------------------------------------------------------------


async def scrub(connection: AsyncConnection, found: Dossier, artefacts: Collection[Found]) -> list[Found]:
    """Take out of rows what a request's clients said and what was measured of them; returns what was taken out."""
    leaving = await _leaving(connection, found, artefacts)
    salt, taken = bytes.fromhex(found.erasure.salt), list[Found]()
    for one in SCRUBS:
        for rows in one.rows(leaving):
            taken += await _take(connection, one, rows, leaving, salt)
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


async def _leaving(connection: AsyncConnection, found: Dossier, artefacts: Collection[Found]) -> Leaving:
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
        x.kind == "forgotten", x.cohort_id.in_([c.cohort_id for c in found.lines])
    )
    written = {str(client_id) for client_id in client_ids}
    mended_ids = [row.id for row in await connection.execute(mended) if not written.isdisjoint(row.forgets)]
    return Leaving(
        erasure_id=found.erasure.id,
        federation_id=found.erasure.federation_id,
        client_ids=client_ids,
        names=frozenset(s.name for s in found.subjects if s.client_id in client_ids),
        stays=stays,
        last_epochs={**over, **{line.cohort_id: line.epoch_before for line in found.lines}},
        run_ids=frozenset(row.run_id for row in cohorts) | {line.run_id for line in found.lines},
        model_ids=frozenset(a.row_id for a in artefacts if a.kind in ("checkpoint", "merge") and a.row_id is not None),
        mended_ids=frozenset(mended_ids),
        update_ids=frozenset(a.row_id for a in artefacts if a.kind == "update" and a.row_id is not None),
    )


async def _take(
    connection: AsyncConnection, one: Scrub, rows: sa.ColumnElement[bool], leaving: Leaving, salt: bytes
) -> list[Found]:
    """Page by page, in the order of the keys."""
    column, table, taken = one.column, one.column.table, list[Found]()
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
            left = one.empty(value, row, leaving)
            if left != value:
                key = {f"_{key.name}": getattr(row, key.name) for key in keys}
                changes.append({**key, "_left": left})
                if one.kind is not None:
                    taken.append(Found(one.kind, _digest(salt, column, key, value), disposition="scrubbed"))
        if changes:
            await connection.execute(change, changes)
            await asyncio.sleep(0)  # SQLite answers on the event loop: others have their turn
        if len(found) < PAGE:
            return taken
        after = tuple(getattr(found[-1], key.name) for key in keys)


def _digest(salt: bytes, column: sa.Column[Any], key: dict[str, Any], value: Any) -> str:
    """Of what was in one column of one row."""
    written = orjson.dumps([str(column), [str(part) for part in key.values()], value])
    return "sha256:" + hmac.new(salt, written, hashlib.sha256).hexdigest()
