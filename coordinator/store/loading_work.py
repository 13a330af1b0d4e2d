"""Loads cohorts and the work in them: rounds, tasks, jobs, updates that wait, members. What is known of a locked cohort
(`warm.py`) is not read again."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from coordinator.engine.entities import (
    Checkpoint,
    Client,
    Cohort,
    Contribution,
    Erasure,
    Job,
    Member,
    Round,
    Run,
    Subject,
    Task,
    Update,
)
from coordinator.engine.entities.state import RememberingTable
from coordinator.engine.families import NEWCOMER
from coordinator.engine.needs import Needs
from coordinator.store import tables as t
from coordinator.store.loading import Loading
from coordinator.store.rows import columns_of, fetch_by, listed, to_entity
from services.methods.catalogue import WALK_THEIR_HISTORY

_OPEN = ("standby", "ready", "leased")
_c = t.tasks.c
_keys: sa.BindParameter[UUID] = sa.bindparam("keys", expanding=True)
_CLAIMABLE = _c.client_id.in_(_keys) & t.IS_CLAIMABLE_OR_LEASED & (_c.status == "ready")
_BUFFERED = sa.select(*columns_of(Update)).where(t.updates.c.cohort_id.in_(_keys), t.updates.c.status == "buffered")
_TASKS_TO_CLAIM = sa.select(t.tasks).where(_CLAIMABLE)
_OPEN_TASKS = sa.select(t.tasks).where(_c.cohort_id.in_(_keys), t.IS_OPEN_TASK)


def _locking(cohort_ids: Any) -> sa.Select[Any]:
    """Lock cohorts, and find what of them is known besides (`warm.py`)."""
    stamps = (t.cohorts.c.stamp, t.cohorts.c.members_stamp)
    found = sa.select(*columns_of(Cohort), *stamps).where(t.cohorts.c.id.in_(cohort_ids))
    return found.order_by(t.cohorts.c.id).with_for_update()


_LOCK_BY: Final = {
    "tasks": _locking(sa.select(_c.cohort_id).where(_c.id.in_(_keys))),
    "rounds": _locking(sa.select(t.rounds.c.cohort_id).where(t.rounds.c.id.in_(_keys))),
    "jobs": _locking(sa.select(t.jobs.c.cohort_id).where(t.jobs.c.id.in_(_keys))),
    "programs": _locking(_keys),
    "runs": _locking(sa.select(t.cohorts.c.id).where(t.cohorts.c.run_id.in_(_keys))),
    "claimants": _locking(sa.select(_c.cohort_id).where(_CLAIMABLE)),
}
"""What messages name cohorts by."""


async def lock_cohorts(loading: Loading) -> None:
    named = _not_yet_locked(loading)
    if len(named) == 1 and not loading.needs.restarting and not loading.needs.leaving:
        ((way, keys),) = named.items()
        await _lock(loading, _LOCK_BY[way], keys)
        return
    ways = [_named_by(way, keys) for way, keys in named.items()]
    ways += [sa.select(_c.cohort_id).where(own) for own in _of_restarting_and_leaving(loading.needs)]
    if loading.needs.leaving:
        ways.append(sa.select(t.members.c.cohort_id).where(t.members.c.client_id.in_(loading.needs.leaving)))
    if ways:
        await _lock(loading, _locking(sa.union(*ways) if len(ways) > 1 else ways[0]), ())


async def _lock(loading: Loading, statement: sa.Select[Any], keys: Collection[UUID]) -> None:
    found = []
    for row in await loading.connection.execute(statement, {"keys": listed(keys)} if keys else None):
        *values, stamp, members_stamp = row
        found.append(to_entity(Cohort, values))
        loading.known.note_locked(found[-1].id, stamp, members_stamp)
    loading.merge(Cohort, found)


def _not_yet_locked(loading: Loading) -> dict[str, set[UUID]]:
    """What messages name cohorts by, without what is known to belong to one that is locked already."""
    needs, warm = loading.needs, loading.warm
    named = {
        "tasks": {one for one in needs.tasks if _cohort_of(loading.tasks.get(one)) not in warm},
        "rounds": {one for one in needs.rounds if _cohort_of(loading.rounds.get(one)) not in warm},
        "jobs": {one for one in needs.jobs if _cohort_of(loading.jobs.get(one)) not in warm},
        "programs": needs.programs - warm.keys(),
        "runs": needs.runs,
        "claimants": needs.claimants,
    }
    return {way: keys for way, keys in named.items() if keys}


def _cohort_of(row: Task | Round | Job | None) -> UUID | None:
    return None if row is None else row.cohort_id


def _named_by(way: str, keys: set[UUID]) -> sa.Select[Any]:
    match way:
        case "programs":
            return sa.select(t.cohorts.c.id).where(t.cohorts.c.id.in_(keys))
        case "runs":
            return sa.select(t.cohorts.c.id).where(t.cohorts.c.run_id.in_(keys))
        case "claimants":
            return sa.select(_c.cohort_id).where(_c.client_id.in_(keys), _c.status == "ready")
    table = t.metadata.tables[way]
    return sa.select(table.c.cohort_id).where(table.c.id.in_(keys))


def _of_restarting_and_leaving(needs: Needs) -> Iterator[sa.ColumnElement[bool]]:
    """The tasks that messages name by their client, other than claims."""
    if needs.restarting:
        yield _c.client_id.in_(needs.restarting) & (_c.status == "leased")
    if needs.leaving:
        yield _c.client_id.in_(needs.leaving) & _c.status.in_(_OPEN)


async def load_tasks(loading: Loading) -> None:
    needs, warm = loading.needs, loading.warm
    awaited = {c.awaiting for c in loading.cohorts.values() if c.awaiting}
    await _load_open_tasks(loading, _cohorts_with_open_work(loading) | loading.cohorts_of(needs.runs))
    if needs.tasks:
        found = {one: cohort.tasks[one] for one in needs.tasks for cohort in warm.values() if one in cohort.tasks}
        loading.add_table("tasks", found)
        if missing := needs.tasks - loading.tasks.keys():
            _note(loading, await loading.add_by(Task, _c.id, missing))
    if needs.claimants:
        await _load_tasks_to_claim(loading)
    wanted = list(_of_restarting_and_leaving(needs))
    if needs.leaving:
        own = _c.client_id.in_(needs.leaving) & _c.round_id.in_(awaited)
        wanted.append(own & (_c.status == "failed"))
    if needs.runs and awaited:
        wanted.append(_c.run_id.in_(needs.runs) & _c.round_id.in_(awaited) & (_c.status == "failed"))
    if wanted:
        await loading.add(Task, sa.or_(*wanted))


async def _load_open_tasks(loading: Loading, cohort_ids: set[UUID]) -> None:
    known = [loading.warm[one] for one in cohort_ids if one in loading.warm and loading.warm[one].has_tasks]
    if missing := {one for one in cohort_ids if one not in loading.warm or not loading.warm[one].has_tasks}:
        _note(loading, await loading.add_found(Task, _OPEN_TASKS, missing))
        for one in missing & loading.warm.keys():
            loading.warm[one].has_tasks = True
    loading.add_table("tasks", {one: task for cohort in known for one, task in cohort.tasks.items()})


async def _load_tasks_to_claim(loading: Loading) -> None:
    """Tasks of cohorts that are locked: others became ready since they were looked for, and are claimed next time."""
    clients, warm = loading.needs.claimants, loading.warm.values()
    if all(cohort.has_tasks for cohort in warm):
        own = [cohort.tasks[one] for cohort in warm for client in clients for one in cohort.tasks_of.get(client, ())]
        found = [task for task in own if task.status == "ready"]
    else:
        rows = await loading.connection.execute(_TASKS_TO_CLAIM, {"keys": listed(clients)})
        found = [task for row in rows if (task := to_entity(Task, row)).cohort_id in loading.warm]
        _note(loading, found)
    loading.merge(Task, found)


def _note(loading: Loading, rows: Iterable[Task | Round | Update]) -> None:
    """Rows of cohorts that are locked stay known."""
    for row in rows:
        if row.cohort_id in loading.warm:
            loading.warm[row.cohort_id].note((row,))


def _cohorts_with_open_work(loading: Loading) -> set[UUID]:
    """Cohorts whose open tasks matter as a whole: asynchronous ones and those that may step."""
    streams = {c.id for c in loading.cohorts.values() if c.stream_round_id is not None}
    needs = loading.needs
    stepping = set(loading.cohorts) if needs.steps_program or needs.rounds or needs.jobs else set()
    return streams | stepping | needs.programs


async def load_jobs_and_rounds(loading: Loading) -> None:
    needs, cohorts, warm = loading.needs, loading.cohorts.values(), loading.warm
    if missing := needs.jobs - loading.jobs.keys():
        await loading.add_by(Job, t.jobs.c.id, missing)
    if needs.runs:
        await loading.add(Job, sa.and_(t.jobs.c.run_id.in_(needs.runs), t.IS_OPEN_JOB))
        await loading.add(Round, t.rounds.c.run_id.in_(needs.runs) & (t.rounds.c.status == "open"))
    wanted = {task.round_id: task.cohort_id for task in loading.tasks.values()}
    wanted |= {c.stream_round_id: c.id for c in cohorts if c.stream_round_id is not None}
    wanted |= {one: cohort_id for one in needs.rounds for cohort_id, cohort in warm.items() if one in cohort.rounds}
    places = [(one, warm[place].rounds) for one, place in wanted.items() if place in warm]
    loading.add_table("rounds", {one: rounds[one] for one, rounds in places if one in rounds})
    if missing := (needs.rounds | wanted.keys()) - loading.rounds.keys():
        _note(loading, await loading.add_by(Round, t.rounds.c.id, missing))


async def load_runs(loading: Loading) -> None:
    """Who changes a run locks all its cohorts: one of them that is locked is enough to know it."""
    cohorts = loading.cohorts
    known = [one.run for one in loading.warm.values() if one.run is not None]
    loading.add_table("runs", {run.id: run for run in known})
    if missing := {c.run_id for c in cohorts.values()} - loading.runs.keys():
        await loading.add_by(Run, t.runs.c.id, missing)
    for cohort_id, one in loading.warm.items():
        one.run = loading.runs[cohorts[cohort_id].run_id]


async def load_updates(loading: Loading) -> None:
    needs, warm = loading.needs, loading.warm
    done = {one for one in needs.tasks if (task := loading.tasks.get(one)) is not None and task.status == "done"}
    if done:
        await loading.add_by(Update, t.updates.c.task_id, done)
    if not (needs.steps_program or loading.whole or loading.mended or needs.resuming):
        return
    known = [warm[one] for one in loading.cohorts if one in warm and warm[one].has_updates]
    if missing := {one for one in loading.cohorts if one not in warm or not warm[one].has_updates}:
        _note(loading, await loading.add_found(Update, _BUFFERED, missing))
        for one in missing & warm.keys():
            warm[one].has_updates = True
    loading.add_table("updates", {one: update for cohort in known for one, update in cohort.updates.items()})


async def load_members(loading: Loading) -> None:
    if loading.needs.leaving:
        await loading.add(Member, t.members.c.client_id.in_(loading.needs.leaving))
    cohort_ids = set(loading.cohorts) if loading.needs.steps_program else loading.cohorts_of(loading.needs.runs)
    warm = loading.warm
    known: list[dict[Any, Member]] = [warm[one].members for one in cohort_ids if one in warm and warm[one].has_members]
    if missing := {one for one in cohort_ids if one not in warm or not warm[one].has_members}:
        found = await fetch_by(loading.connection, Member, t.members.c.cohort_id, missing)
        by_cohort: dict[UUID, dict[Any, Member]] = {one: {} for one in missing}
        for member in found:
            by_cohort[member.cohort_id][member.key] = member
        for one in missing & warm.keys():
            warm[one].members, warm[one].has_members = RememberingTable(by_cohort[one]), True
        known += [warm[one].members if one in warm else rows for one, rows in by_cohort.items()]
    loading.add_table("members", known[0] if len(known) == 1 else {k: m for one in known for k, m in one.items()})


async def load_what_newcomers_are_measured_against(loading: Loading) -> None:
    needs, cohorts = loading.needs, loading.cohorts.values()
    measuring = {c.run_id for c in cohorts if c.program == NEWCOMER} if loading.needs.steps_program else set()
    if not measuring and not needs.measured:
        return
    of_cohorts = sa.select(t.cohorts.c.id).where(t.cohorts.c.run_id.in_(measuring), t.cohorts.c.program == "profile")
    if measuring:
        await loading.add(Cohort, t.cohorts.c.id.in_(of_cohorts))
        await loading.add(Update, t.updates.c.cohort_id.in_(of_cohorts) & t.updates.c.stored)
    with_clients = t.members.c.cohort_id.in_(of_cohorts) | t.members.c.cohort_id.in_(needs.measured)
    await loading.add(Client, t.clients.c.id.in_(sa.select(t.members.c.client_id).where(with_clients)))


async def load_rounds_to_walk(loading: Loading) -> None:
    """What fenced lines that compute their old rounds again were made of."""
    lines = [c for c in loading.cohorts.values() if c.program in WALK_THEIR_HISTORY and c.phase == "starting"]
    ids = {c.id for c in lines if c.epoch > 0} if loading.needs.steps_program else set()
    if ids:
        await loading.add(Checkpoint, t.checkpoints.c.cohort_id.in_(ids))
        made = sa.select(t.checkpoints.c.id).where(t.checkpoints.c.cohort_id.in_(ids))
        await loading.add(Contribution, t.contributions.c.checkpoint_id.in_(made))
        await loading.add(Update, t.updates.c.cohort_id.in_(ids))
        members = sa.select(t.members.c.client_id).where(t.members.c.cohort_id.in_(ids))
        await loading.add(Client, t.clients.c.id.in_(members))
        asked = await loading.add(Subject, t.subjects.c.client_id.in_(members))
        await loading.add_by(Erasure, t.erasures.c.id, {subject.erasure_id for subject in asked})
