"""Loads cohorts and the work in them: rounds, tasks, jobs, updates that wait, members."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
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
    Subject,
    Task,
    Update,
)
from coordinator.engine.families import NEWCOMER
from coordinator.engine.needs import Needs
from coordinator.engine.programs import answers_to, is_filled
from coordinator.store import tables as t
from coordinator.store.loading import Loading
from coordinator.store.prepared import prepared
from services.methods.catalogue import TRAIN_IN_ROUNDS, WALK_THEIR_HISTORY
from services.training.rounds import only_computes

_OPEN = ("standby", "ready", "leased")
_CLAIMABLE = sa.and_(
    t.tasks.c.client_id.in_(sa.bindparam("keys", expanding=True)),
    t.IS_CLAIMABLE_OR_LEASED,
    t.tasks.c.status == "ready",
)
_COHORTS_TO_CLAIM_FROM = prepared(
    sa.select(t.cohorts)
    .where(t.cohorts.c.id.in_(sa.select(t.tasks.c.cohort_id).where(_CLAIMABLE)))
    .order_by(t.cohorts.c.id)
    .with_for_update()
)
_BUFFERED = prepared(
    sa.select(t.updates).where(
        t.updates.c.cohort_id.in_(sa.bindparam("keys", expanding=True)), t.updates.c.status == "buffered"
    )
)
_TASKS_TO_CLAIM = prepared(sa.select(t.tasks).where(_CLAIMABLE))
_OPEN_TASKS = prepared(
    sa.select(t.tasks).where(t.tasks.c.cohort_id.in_(sa.bindparam("keys", expanding=True)), t.IS_OPEN_TASK)
)


def _only_claims(needs: Needs) -> bool:
    others = needs.tasks or needs.rounds or needs.jobs or needs.runs or needs.programs or needs.restarting
    is_everywhere = None in needs.claimed_runs
    return bool(needs.claimants) and is_everywhere and not others and not needs.leaving


def _of_clients(needs: Needs) -> Iterator[sa.ColumnElement[bool]]:
    """The tasks that messages name by their client."""
    c = t.tasks.c
    if needs.claimants:
        ready = c.client_id.in_(needs.claimants) & (c.status == "ready")
        yield ready if None in needs.claimed_runs else ready & c.run_id.in_(needs.claimed_runs)
    if needs.restarting:
        yield c.client_id.in_(needs.restarting) & (c.status == "leased")
    if needs.leaving:
        yield c.client_id.in_(needs.leaving) & c.status.in_(_OPEN)


def _single_way(needs: Needs) -> tuple[sa.Column[Any], set[UUID]] | None:
    """When all messages name their cohorts in the same way, and it is one of the frequent ones."""
    others = needs.runs or needs.programs or needs.claimants or needs.restarting or needs.leaving
    ways: list[tuple[sa.Column[Any], set[UUID]]] = [
        (t.tasks.c.id, needs.tasks),
        (t.rounds.c.id, needs.rounds),
        (t.jobs.c.id, needs.jobs),
    ]
    used = [(column, keys) for column, keys in ways if keys]
    return used[0] if len(used) == 1 and not others else None


async def lock_cohorts(loading: Loading) -> None:
    needs, ways = loading.needs, []
    if _only_claims(needs):
        await loading.add_found(Cohort, _COHORTS_TO_CLAIM_FROM, needs.claimants)
        return
    if lookup := _single_way(needs):
        await loading.add_by(Cohort, *lookup, lock=True)
        return
    if needs.tasks:
        ways.append(sa.select(t.tasks.c.cohort_id).where(t.tasks.c.id.in_(needs.tasks)))
    ways += [sa.select(t.tasks.c.cohort_id).where(own) for own in _of_clients(needs)]
    if needs.leaving:
        ways.append(sa.select(t.members.c.cohort_id).where(t.members.c.client_id.in_(needs.leaving)))
    if needs.rounds:
        ways.append(sa.select(t.rounds.c.cohort_id).where(t.rounds.c.id.in_(needs.rounds)))
    if needs.jobs:
        ways.append(sa.select(t.jobs.c.cohort_id).where(t.jobs.c.id.in_(needs.jobs)))
    if needs.runs:
        ways.append(sa.select(t.cohorts.c.id).where(t.cohorts.c.run_id.in_(needs.runs)))
    if needs.programs:
        ways.append(sa.select(t.cohorts.c.id).where(t.cohorts.c.id.in_(needs.programs)))
    if ways:
        await loading.add(Cohort, t.cohorts.c.id.in_(sa.union(*ways) if len(ways) > 1 else ways[0]), lock=True)


async def load_tasks(loading: Loading) -> None:
    needs = loading.needs
    if _only_claims(needs) and not _cohorts_with_open_work(loading):
        await loading.add_found(Task, _TASKS_TO_CLAIM, needs.claimants)
        return
    lookup = _single_way(needs)
    if lookup is not None and lookup[0] is t.tasks.c.id and not _cohorts_with_open_work(loading):
        await loading.add_by(Task, t.tasks.c.id, needs.tasks)
        return
    wanted: list[sa.ColumnElement[bool]] = []
    if needs.tasks:
        wanted.append(t.tasks.c.id.in_(needs.tasks))
    wanted += _of_clients(needs)
    if needs.leaving:
        awaited = {c.awaiting for c in loading.cohorts.values() if c.awaiting}
        own = t.tasks.c.client_id.in_(needs.leaving) & t.tasks.c.round_id.in_(awaited)
        wanted.append(own & (t.tasks.c.status == "failed"))
    whole = _cohorts_with_open_work(loading)
    if whole:
        await loading.add_found(Task, _OPEN_TASKS, whole)
    if needs.runs:
        awaited = {c.awaiting for c in loading.cohorts.values() if c.run_id in needs.runs and c.awaiting}
        wanted.append(sa.and_(t.tasks.c.run_id.in_(needs.runs), t.IS_OPEN_TASK))
        if awaited:
            wanted.append(t.tasks.c.round_id.in_(awaited) & (t.tasks.c.status == "failed"))
    if wanted:
        await loading.add(Task, sa.or_(*wanted))


def _cohorts_with_open_work(loading: Loading) -> set[UUID]:
    """Cohorts whose open tasks matter as a whole: asynchronous ones and those that may step."""
    streams = {c.id for c in loading.cohorts.values() if c.stream_round_id is not None}
    needs = loading.needs
    stepping = set(loading.cohorts) if needs.steps_program or needs.rounds or needs.jobs else set()
    return streams | stepping | needs.programs


async def load_jobs_and_rounds(loading: Loading) -> None:
    needs, cohorts = loading.needs, loading.cohorts.values()
    if needs.jobs:
        await loading.add_by(Job, t.jobs.c.id, needs.jobs)
    if needs.runs:
        await loading.add(Job, sa.and_(t.jobs.c.run_id.in_(needs.runs), t.IS_OPEN_JOB))
        await loading.add(Round, t.rounds.c.run_id.in_(needs.runs) & (t.rounds.c.status == "open"))
    round_ids = needs.rounds | {task.round_id for task in loading.tasks.values()}
    round_ids |= {c.stream_round_id for c in cohorts if c.stream_round_id is not None}
    if round_ids := round_ids - loading.rounds.keys():
        await loading.add_by(Round, t.rounds.c.id, round_ids)


async def load_updates(loading: Loading) -> None:
    done = {task.id for task in loading.tasks.values() if task.id in loading.needs.tasks and task.status == "done"}
    if done:
        await loading.add_by(Update, t.updates.c.task_id, done)
    if loading.needs.steps_program or loading.whole or loading.needs.resuming:
        await loading.add_found(Update, _BUFFERED, loading.cohorts.keys())


async def load_members(loading: Loading) -> None:
    if loading.needs.leaving:
        await loading.add(Member, t.members.c.client_id.in_(loading.needs.leaving))
    cohort_ids = loading.cohorts_of(loading.needs.runs)
    if loading.needs.steps_program:
        cohort_ids |= {cohort.id for cohort in loading.cohorts.values() if not _only_computes(loading, cohort)}
    if cohort_ids:
        await loading.add_by(Member, t.members.c.cohort_id, cohort_ids)


def _only_computes(loading: Loading, cohort: Cohort) -> bool:
    """Whether the cohort's next step needs no members: there may be very many, and two of a round's three steps
    only start a kernel."""
    if cohort.active_program not in TRAIN_IN_ROUNDS or cohort.id in loading.needs.programs or cohort.awaiting is None:
        return False
    phase = (cohort.program_state or {}).get("phase")
    round, job = loading.rounds.get(cohort.awaiting), loading.jobs.get(cohort.awaiting)
    is_answered = round is not None and is_filled(cohort, round) and bool(answers_to(loading.state, round))
    return (is_answered or job is not None) and only_computes(phase, loading.runs[cohort.run_id].spec)


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
