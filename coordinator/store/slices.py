"""What each message needs to see, loaded for a whole batch at once and locked so that it stays true.

Lock order: run rows before cohort rows, each in id order. A training message locks its cohort only; messages that
change a run lock the run and all its cohorts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.engine import messages as m
from coordinator.engine.entities import (
    SETTLED,
    Blob,
    Checkpoint,
    Client,
    Cohort,
    Contribution,
    Delivery,
    Entity,
    Erasure,
    Exclusion,
    Facts,
    Job,
    Line,
    Member,
    Parent,
    Round,
    Run,
    State,
    Subject,
    Task,
    Update,
)
from coordinator.engine.families import NEWCOMER, WALKS_ITS_HISTORY
from coordinator.engine.programs import answers_to, is_filled
from coordinator.store import history, kept, superseded
from coordinator.store import tables as t
from coordinator.store.needs import Needs, needs_of, steps_program
from coordinator.store.prepared import prepared
from coordinator.store.rows import fetch, fetch_by, to_entity
from services.training.rounds import only_computes

E = TypeVar("E", bound=Entity)
_OPEN = ("standby", "ready", "leased")
TRAINS_IN_ROUNDS = ("fedavg", "fedbuff", "fats")
"""Programs that are nothing but `services.training.rounds`."""


async def load(connection: AsyncConnection, messages: Sequence[m.Message], known: State) -> State:
    """`known` plus what these messages need. Records already known win: they may carry changes not yet written."""
    return await _Loader(connection, needs_of(messages), known, any(map(steps_program, messages))).load()


async def load_lineage(connection: AsyncConnection, client_ids: set[UUID]) -> State:
    """The models of every run that one of the clients was ever in, or that began with a model of such a run, with
    their parents and the clients' contributions."""
    return await _Loader(connection, Needs(), State(), steps_program=False).load_lineage(client_ids)


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


_own: sa.ColumnElement[bool] = t.blobs.c.federation_id.in_(
    sa.bindparam("owners", expanding=True)
) & t.blobs.c.digest.in_(sa.bindparam("digests", expanding=True))
_FACTS = prepared(
    sa.select(
        t.blobs.c.federation_id,
        t.blobs.c.digest,
        t.blobs.c.num_bytes,
        t.blobs.c.layout_digest,
        t.blobs.c.updatable_digest,
        t.blobs.c.finite,
    ).where(_own, t.blobs.c.status == "stored")
)
_BLOBS = prepared(  # locked: whoever gives one up meanwhile has done so, or finds it recorded
    sa.select(t.blobs)
    .where(t.blobs.c.id.in_(sa.bindparam("keys", expanding=True)))
    .order_by(t.blobs.c.id)
    .with_for_update()
)
_UPLOADS = prepared(
    sa.select(t.blobs)
    .where(t.blobs.c.origin_id.in_(sa.bindparam("keys", expanding=True)), t.blobs.c.status == "stored")
    .order_by(t.blobs.c.id)
    .with_for_update()
    .with_for_update(read=True, key_share=True)
)
"""Whoever is about to name a blob holds off those who would give it up; see `references`."""
_NAMED_BLOBS = prepared(
    sa.select(t.blobs)
    .where(_own, t.blobs.c.origin != "copy", t.blobs.c.status == "stored")
    .order_by(t.blobs.c.id)
    .with_for_update(read=True, key_share=True)
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


@dataclass(slots=True)
class _Loader:
    connection: AsyncConnection
    needs: Needs
    state: State
    steps_program: bool

    async def load(self) -> State:
        needs = self.needs
        leaver_ids = await self._load_erasures()
        if needs.announced or needs.deliveries:
            of_request = t.deliveries.c.erasure_id.in_(needs.announced)
            await self._add(Delivery, of_request | t.deliveries.c.id.in_(needs.deliveries), lock=True)
        await self._lock_newcomers()
        if needs.runs:
            await self._add_by(Run, t.runs.c.id, needs.runs, lock=True)
        if needs.filings:
            await self._load_other_requests(leaver_ids)
        await self._lock_cohorts()
        await self._load_tasks()
        await self._load_jobs_and_rounds()
        changing = needs.restarting | needs.opening | needs.leaving | needs.acknowledging | leaver_ids
        if changing:
            await self._add_by(Client, t.clients.c.id, changing, lock=True)
        if client_ids := (needs.clients | needs.claimants) - changing:
            await self._add_by(Client, t.clients.c.id, client_ids)
        if leaver_ids or needs.acknowledging:
            await self._add_by(Exclusion, t.exclusions.c.client_id, leaver_ids | needs.acknowledging)
        if needs.mentioned:
            wanted = sa.tuple_(t.clients.c.federation_id, t.clients.c.name).in_(sorted(needs.mentioned, key=str))
            await self._add(Client, wanted)
        await self._load_what_newcomers_are_measured_against()
        await self._load_rounds_to_walk()
        await self._load_what_methods_need()
        if needs.federations:
            await self._add(Client, t.clients.c.federation_id.in_(needs.federations))
        if run_ids := {c.run_id for c in self.state.cohorts.values()} - self.state.runs.keys():
            await self._add_by(Run, t.runs.c.id, run_ids)
        await self._load_updates()
        await self._load_members()
        await self._load_lineage(leaver_ids)
        await self._load_blobs()
        return self.state

    async def _load_erasures(self) -> set[UUID]:
        """Requests, their subjects and lines; widens `needs` to the runs they touch. Returns the leavers' ids."""
        needs = self.needs
        if not needs.erasures:
            return set()
        of_request = t.erasures.c.id.in_(needs.erasures) | t.erasures.c.duplicate_of.in_(needs.erasures)
        if needs.fences:
            own = sa.select(t.erasures.c.federation_id).where(t.erasures.c.id.in_(needs.fences))
            of_request |= t.erasures.c.federation_id.in_(own) & t.erasures.c.status.not_in(SETTLED)
        await self._add(Erasure, of_request, lock=True)
        await self._add(Subject, t.subjects.c.erasure_id.in_(needs.erasures))
        leavers = {s.client_id for s in self.state.subjects.values() if s.erasure_id in needs.fences}
        needs.all_stay &= all(self.state.erasures[one].scope == "samples" for one in needs.fences)
        if needs.leavers:
            wanted = sa.tuple_(t.clients.c.federation_id, t.clients.c.name).in_(sorted(needs.leavers, key=str))
            leavers |= {client.id for client in await self._add(Client, wanted, lock=True)}
        if leavers:
            await self._widen_to_runs_of(leavers)
        if needs.fences:
            await self._add(Line, t.lines.c.run_id.in_(needs.whole) & t.lines.c.erasure_id.in_(self.state.erasures))
        lines = await self._add(Line, t.lines.c.erasure_id.in_(needs.reviews)) if needs.reviews else []
        if mended := {line.cohort_id for line in lines if line.action == "unlearned"}:  # it may have to be cut again
            others = await self._add_by(Line, t.lines.c.cohort_id, mended)
            await self._add(Erasure, t.erasures.c.id.in_({line.erasure_id for line in others}), lock=True)
        ordered = await self._add(Exclusion, t.exclusions.c.erasure_id.in_(needs.reviews)) if needs.reviews else []
        needs.clients |= {exclusion.client_id for exclusion in ordered}
        needs.clients |= {s.client_id for s in self.state.subjects.values() if s.erasure_id in needs.reviews}
        needs.acknowledging |= {s.client_id for s in self.state.subjects.values() if s.erasure_id in needs.begun}
        needs.merging |= {line.run_id for line in lines}
        needs.runs |= needs.whole | needs.merging
        return leavers

    async def _lock_newcomers(self) -> None:
        """Filing a request locks its clients as well: either it is seen here, or its fence sees the new members."""
        if self.needs.joining:
            wanted = sa.tuple_(t.clients.c.federation_id, t.clients.c.name).in_(sorted(self.needs.joining, key=str))
            found = {client.id for client in await self._add(Client, wanted, lock=True)}
            await self._add(Subject, t.subjects.c.client_id.in_(found) & t.subjects.c.active)

    async def _load_what_newcomers_are_measured_against(self) -> None:
        needs, cohorts = self.needs, self.state.cohorts.values()
        measuring = {c.run_id for c in cohorts if c.program == NEWCOMER} if self.steps_program else set()
        if not measuring and not needs.measured:
            return
        of_cohorts = sa.select(t.cohorts.c.id).where(
            t.cohorts.c.run_id.in_(measuring), t.cohorts.c.program == "profile"
        )
        if measuring:
            await self._add(Cohort, t.cohorts.c.id.in_(of_cohorts))
            await self._add(Update, t.updates.c.cohort_id.in_(of_cohorts) & t.updates.c.stored)
        with_clients = t.members.c.cohort_id.in_(of_cohorts) | t.members.c.cohort_id.in_(needs.measured)
        await self._add(Client, t.clients.c.id.in_(sa.select(t.members.c.client_id).where(with_clients)))

    async def _load_rounds_to_walk(self) -> None:
        """What fenced lines that compute their old rounds again were made of."""
        lines = [c for c in self.state.cohorts.values() if c.program == WALKS_ITS_HISTORY and c.phase == "starting"]
        ids = {c.id for c in lines if c.epoch > 0} if self.steps_program else set()
        if ids:
            await self._add(Checkpoint, t.checkpoints.c.cohort_id.in_(ids))
            made = sa.select(t.checkpoints.c.id).where(t.checkpoints.c.cohort_id.in_(ids))
            await self._add(Contribution, t.contributions.c.checkpoint_id.in_(made))
            await self._add(Update, t.updates.c.cohort_id.in_(ids))
            members = sa.select(t.members.c.client_id).where(t.members.c.cohort_id.in_(ids))
            await self._add(Client, t.clients.c.id.in_(members))
            asked = await self._add(Subject, t.subjects.c.client_id.in_(members))
            await self._add_by(Erasure, t.erasures.c.id, {subject.erasure_id for subject in asked})

    async def _load_what_methods_need(self) -> None:
        """The lines that an erasure's method works on, and the round that it looks up."""
        mended = (
            {c.id for c in self.state.cohorts.values() if c.unlearning is not None} if self.steps_program else set()
        )
        if mended:
            await self._add_by(Line, t.lines.c.cohort_id, mended)
        if self.needs.resuming:
            await self._add(Line, t.lines.c.run_id.in_(self.needs.resuming))
        if self.needs.reviews:
            own = t.lines.c.erasure_id.in_(self.needs.reviews) & (t.lines.c.action == "unlearned")
            since = t.lines.c.epoch_after <= t.checkpoints.c.epoch
            is_before = t.lines.c.head_before == t.checkpoints.c.digest
            made = (t.lines.c.cohort_id == t.checkpoints.c.cohort_id) & (since | is_before)
            await self._add(Checkpoint, sa.exists().where(own, made))
            audited = sa.select(t.lines.c.cohort_id).where(own)
            await self._add(Update, t.updates.c.cohort_id.in_(audited), t.updates.c.kind == "audit")
        if self.needs.recalled:
            among = t.contributions.c.checkpoint_id.in_(self.needs.recalled)
            found = await self._add(Contribution, among)
            await self._load_copies(await self._add_by(Update, t.updates.c.id, {c.update_id for c in found}))
            await self._add_by(Client, t.clients.c.id, {c.client_id for c in found} - self.state.clients.keys())

    async def _load_copies(self, updates: Iterable[Update]) -> None:
        """Which of the updates are in the sealed history."""
        found = await kept.copied(self.connection, [update.id for update in updates])
        self.state = replace(self.state, kept={**self.state.kept, **found})

    async def _load_other_requests(self, leaver_ids: set[UUID]) -> None:
        """After the runs are locked: two requests that are filed at once see each other."""
        s = t.subjects.c
        open_ones = sa.select(t.erasures.c.id).where(t.erasures.c.federation_id.in_(self.needs.filings))
        subjects = await self._add(Subject, s.client_id.in_(leaver_ids) | (s.active & s.erasure_id.in_(open_ones)))
        ids = {subject.erasure_id for subject in subjects}
        await self._add(Erasure, t.erasures.c.id.in_(ids) | t.erasures.c.duplicate_of.in_(ids))

    async def load_lineage(self, client_ids: set[UUID]) -> State:
        await self._widen_to_runs_of(client_ids)
        await self._load_lineage(client_ids)
        return self.state

    async def _widen_to_runs_of(self, client_ids: set[UUID]) -> None:
        """Runs with these clients, and runs whose initial model is one that such a run published."""
        touched = (
            sa.select(t.cohorts.c.run_id)
            .join(t.members, t.members.c.cohort_id == t.cohorts.c.id)
            .where(t.members.c.client_id.in_(client_ids))
            .distinct()
        )
        self.needs.whole |= set((await self.connection.execute(touched)).scalars())
        made, begun = t.checkpoints, t.checkpoints.alias("begun")
        old, new = t.runs, t.runs.alias("new")
        while self.needs.whole:
            statement = (
                sa.select(begun.c.run_id)
                .join(new, new.c.id == begun.c.run_id)
                .join(made, (made.c.digest == begun.c.digest) & (made.c.kind != "init"))
                .join(old, (old.c.id == made.c.run_id) & (old.c.federation_id == new.c.federation_id))
                .where(begun.c.kind == "init", begun.c.run_id.not_in(self.needs.whole))
                .where(made.c.run_id.in_(self.needs.whole))
                .distinct()
            )
            found = set((await self.connection.execute(statement)).scalars())
            if not found:
                return
            self.needs.whole |= found

    async def _add(self, kind: type[E], *where: sa.ColumnElement[bool], lock: bool = False) -> list[E]:
        return self._merge(kind, await fetch(self.connection, kind, *where, lock=lock))

    async def _add_by(self, kind: type[E], column: sa.Column[Any], keys: Iterable[Any], lock: bool = False) -> list[E]:
        return self._merge(kind, await fetch_by(self.connection, kind, column, keys, lock))

    async def _add_found(self, kind: type[E], statement: sa.Select[Any], keys: Iterable[Any]) -> list[E]:
        rows = await self.connection.execute(statement, {"keys": list(keys)})
        return self._merge(kind, [to_entity(kind, row) for row in rows])

    def _merge(self, kind: type[E], found: list[E]) -> list[E]:
        merged: Any = {**{entity.key: entity for entity in found}, **getattr(self.state, kind.table)}
        self.state = self.state.updated({kind.table: merged})
        return found

    async def _lock_cohorts(self) -> None:
        needs, ways = self.needs, []
        if _only_claims(needs):
            await self._add_found(Cohort, _COHORTS_TO_CLAIM_FROM, needs.claimants)
            return
        if lookup := _single_way(needs):
            await self._add_by(Cohort, *lookup, lock=True)
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
            await self._add(Cohort, t.cohorts.c.id.in_(sa.union(*ways) if len(ways) > 1 else ways[0]), lock=True)

    async def _load_tasks(self) -> None:
        needs = self.needs
        if _only_claims(needs) and not self._cohorts_with_open_work():
            await self._add_found(Task, _TASKS_TO_CLAIM, needs.claimants)
            return
        lookup = _single_way(needs)
        if lookup is not None and lookup[0] is t.tasks.c.id and not self._cohorts_with_open_work():
            await self._add_by(Task, t.tasks.c.id, needs.tasks)
            return
        wanted: list[sa.ColumnElement[bool]] = []
        if needs.tasks:
            wanted.append(t.tasks.c.id.in_(needs.tasks))
        wanted += _of_clients(needs)
        if needs.leaving:
            awaited = {c.awaiting for c in self.state.cohorts.values() if c.awaiting}
            own = t.tasks.c.client_id.in_(needs.leaving) & t.tasks.c.round_id.in_(awaited)
            wanted.append(own & (t.tasks.c.status == "failed"))
        whole = self._cohorts_with_open_work()
        if whole:
            await self._add_found(Task, _OPEN_TASKS, whole)
        if needs.runs:
            awaited = {c.awaiting for c in self.state.cohorts.values() if c.run_id in needs.runs and c.awaiting}
            wanted.append(sa.and_(t.tasks.c.run_id.in_(needs.runs), t.IS_OPEN_TASK))
            if awaited:
                wanted.append(t.tasks.c.round_id.in_(awaited) & (t.tasks.c.status == "failed"))
        if wanted:
            await self._add(Task, sa.or_(*wanted))

    def _cohorts_with_open_work(self) -> set[UUID]:
        """Cohorts whose open tasks matter as a whole: asynchronous ones and those that may step."""
        streams = {c.id for c in self.state.cohorts.values() if c.stream_round_id is not None}
        stepping = set(self.state.cohorts) if self.steps_program or self.needs.rounds or self.needs.jobs else set()
        return streams | stepping | self.needs.programs

    async def _load_jobs_and_rounds(self) -> None:
        needs, cohorts = self.needs, self.state.cohorts.values()
        if needs.jobs:
            await self._add_by(Job, t.jobs.c.id, needs.jobs)
        if needs.runs:
            await self._add(Job, sa.and_(t.jobs.c.run_id.in_(needs.runs), t.IS_OPEN_JOB))
            await self._add(Round, t.rounds.c.run_id.in_(needs.runs) & (t.rounds.c.status == "open"))
        round_ids = needs.rounds | {task.round_id for task in self.state.tasks.values()}
        round_ids |= {c.stream_round_id for c in cohorts if c.stream_round_id is not None}
        if round_ids := round_ids - self.state.rounds.keys():
            await self._add_by(Round, t.rounds.c.id, round_ids)

    async def _load_updates(self) -> None:
        done = {task.id for task in self.state.tasks.values() if task.id in self.needs.tasks and task.status == "done"}
        if done:
            await self._add_by(Update, t.updates.c.task_id, done)
        if self.steps_program or self.needs.whole or self.needs.resuming:
            await self._add_found(Update, _BUFFERED, self.state.cohorts.keys())

    async def _load_members(self) -> None:
        if self.needs.leaving:
            await self._add(Member, t.members.c.client_id.in_(self.needs.leaving))
        cohort_ids = self._cohorts_of(self.needs.runs)
        if self.steps_program:
            cohort_ids |= {cohort.id for cohort in self.state.cohorts.values() if not self._only_computes(cohort)}
        if cohort_ids:
            await self._add_by(Member, t.members.c.cohort_id, cohort_ids)

    def _only_computes(self, cohort: Cohort) -> bool:
        """Whether the cohort's next step needs no members: there may be very many, and two of a round's three steps
        only start a kernel."""
        if cohort.in_force not in TRAINS_IN_ROUNDS or cohort.id in self.needs.programs or cohort.awaiting is None:
            return False
        phase = (cohort.program_state or {}).get("phase")
        round, job = self.state.rounds.get(cohort.awaiting), self.state.jobs.get(cohort.awaiting)
        is_answered = round is not None and is_filled(cohort, round) and bool(answers_to(self.state, round))
        return (is_answered or job is not None) and only_computes(phase, self.state.runs[cohort.run_id].spec)

    def _cohorts_of(self, run_ids: set[UUID]) -> set[UUID]:
        return {c.id for c in self.state.cohorts.values() if c.run_id in run_ids}

    async def _load_lineage(self, leaver_ids: set[UUID]) -> None:
        whole, merging = self.needs.whole, self.needs.merging
        if self.needs.models:
            same = t.checkpoints.c.digest.in_(self.needs.models)
            await self._add(Checkpoint, same)
            await self._add(Run, t.runs.c.id.in_(sa.select(t.checkpoints.c.run_id).where(same)))
        if whole:
            of_run = t.checkpoints.c.run_id.in_(whole)
            await self._add(Checkpoint, of_run)
            checkpoint_ids = sa.select(t.checkpoints.c.id).where(of_run)
            await self._add(Parent, t.parents.c.checkpoint_id.in_(checkpoint_ids))
            by_leaver = t.contributions.c.client_id.in_(leaver_ids)
            await self._add(Contribution, by_leaver, t.contributions.c.checkpoint_id.in_(checkpoint_ids))
            heads = [c.head_id for c in self.state.cohorts.values() if c.run_id in whole and c.head_id is not None]
            in_heads = sa.select(t.contributions.c.update_id).where(
                t.contributions.c.checkpoint_id.in_(heads), by_leaver
            )
            await self._load_copies(await self._add(Update, t.updates.c.id.in_(in_heads)))
            gone = () if self.needs.all_stay else leaver_ids
            traffic = await history.traffic(self.connection, self._cohorts_of(whole), gone)
            archives = await history.archives(self.connection, whole, leaver_ids)
            self.state = replace(
                self.state,
                traffic={**self.state.traffic, **traffic},
                archives={**self.state.archives, **archives},
            )
        if merging:
            heads = [c.head_id for c in self.state.cohorts.values() if c.run_id in merging and c.head_id is not None]
            await self._add(Checkpoint, t.checkpoints.c.id.in_(heads))
            await self._add(Parent, t.parents.c.checkpoint_id.in_(heads))
        if whole or merging:
            await self._load_samples(whole | merging)

    async def _load_samples(self, run_ids: set[UUID]) -> None:
        """What each client last reported in each cohort."""
        updates = t.updates
        newest = (
            sa.select(updates.c.cohort_id, updates.c.client_id, sa.func.max(updates.c.received_at).label("at"))
            .where(updates.c.run_id.in_(run_ids), updates.c.kind == "train")
            .group_by(updates.c.cohort_id, updates.c.client_id)
            .subquery()
        )
        same = (updates.c.cohort_id == newest.c.cohort_id) & (updates.c.client_id == newest.c.client_id)
        statement = (
            sa.select(updates.c.cohort_id, updates.c.client_id, updates.c.num_samples)
            .join(newest, same & (updates.c.received_at == newest.c.at))
            .where(updates.c.kind == "train")
            .order_by(updates.c.id)
        )
        samples = {(row.cohort_id, row.client_id): row.num_samples for row in await self.connection.execute(statement)}
        self.state = replace(self.state, samples={**self.state.samples, **samples})

    async def _load_blobs(self) -> None:
        needs = self.needs
        if needs.blobs:
            await self._add_found(Blob, _BLOBS, needs.blobs)
        if needs.uploads:
            await self._add_found(Blob, _UPLOADS, {task_id for task_id, _ in needs.uploads})
        if needs.named:
            owners, digests = {f for f, _ in needs.named}, {d for _, d in needs.named}
            rows = await self.connection.execute(_NAMED_BLOBS, {"owners": list(owners), "digests": list(digests)})
            self._merge(Blob, [to_entity(Blob, row) for row in rows])
        for wanted, with_updates in ((needs.superseded, False), (needs.named, True)):
            if wanted:
                found = await superseded.superseded(self.connection, wanted, with_updates=with_updates)
                self.state = self.state.updated({"superseded": self.state.superseded | found})
        await self._load_facts()

    async def _load_facts(self) -> None:
        """Of the models of tasks that are handed out or answered, and of what a run names."""
        keys = set(self.needs.named)
        for task in self.state.tasks.values():
            if task.id in self.needs.submitted or task.client_id in self.needs.claimants:
                federation = self.state.runs[task.run_id].federation_id
                keys.add((federation, task.model_digest))
                stream = self.state.cohorts[task.cohort_id].stream_round_id
                if stream is not None:
                    keys.add((federation, self.state.rounds[stream].model_digest))
        if keys := keys - self.state.facts.keys():
            owners, digests = {f for f, _ in keys}, {d for _, d in keys}
            rows = await self.connection.execute(_FACTS, {"owners": list(owners), "digests": list(digests)})
            found = {
                (row.federation_id, row.digest): Facts(
                    row.num_bytes, row.layout_digest, row.updatable_digest, row.finite
                )
                for row in rows
            }
            self.state = self.state.updated({"facts": {**self.state.facts, **found}})
