"""Loads requests to forget, the runs that they touch, and the lineage of the models in these."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from typing import Final
from uuid import UUID

import sqlalchemy as sa

from coordinator.engine.entities import (
    SETTLED,
    AffectedCohort,
    Checkpoint,
    Client,
    Contribution,
    Erasure,
    Exclusion,
    Parent,
    Run,
    Subject,
    Task,
    Update,
)
from coordinator.store import erasure_costs, kept_updates
from coordinator.store import tables as t
from coordinator.store.loading import Loading

_CLOCKS_DIFFER: Final = timedelta(days=1)
"""By far less, from one server of a database to the next."""


async def load_requests(loading: Loading) -> set[UUID]:
    """Requests, their subjects and lines; widens `needs` to the runs they touch. Returns the leavers' ids."""
    needs = loading.needs
    if not needs.erasures:
        return set()
    of_request = t.erasures.c.id.in_(needs.erasures) | t.erasures.c.duplicate_of.in_(needs.erasures)
    if needs.fences:
        own = sa.select(t.erasures.c.federation_id).where(t.erasures.c.id.in_(needs.fences))
        of_request |= t.erasures.c.federation_id.in_(own) & t.erasures.c.status.not_in(SETTLED)
    await loading.add(Erasure, of_request, lock=True)
    await loading.add(Subject, t.subjects.c.erasure_id.in_(needs.erasures))
    leavers = {s.client_id for s in loading.subjects.values() if s.erasure_id in needs.fences}
    needs.all_stay &= all(loading.erasures[one].scope == "samples" for one in needs.fences)
    if needs.leavers:
        wanted = sa.tuple_(t.clients.c.federation_id, t.clients.c.name).in_(sorted(needs.leavers, key=str))
        leavers |= {client.id for client in await loading.add(Client, wanted, lock=True)}
    if leavers:
        await widen_to_runs_of(loading, leavers)
    if needs.fences:
        await loading.add(
            AffectedCohort, t.lines.c.run_id.in_(loading.whole) & t.lines.c.erasure_id.in_(loading.erasures)
        )
        await _load_who_is_forgotten(loading)
    lines = await loading.add(AffectedCohort, t.lines.c.erasure_id.in_(needs.reviews)) if needs.reviews else []
    if mended := {line.run_id for line in lines if line.action == "unlearned"}:  # they may have to be cut again
        loading.mended |= await _with_runs_begun_from(loading, mended)
        needs.merging |= loading.mended
        others = await loading.add_by(AffectedCohort, t.lines.c.run_id, loading.mended)
        await loading.add(Erasure, t.erasures.c.id.in_({line.erasure_id for line in others}), lock=True)
        await _load_who_is_forgotten(loading)
    ordered = await loading.add(Exclusion, t.exclusions.c.erasure_id.in_(needs.reviews)) if needs.reviews else []
    needs.clients |= {exclusion.client_id for exclusion in ordered}
    needs.clients |= {s.client_id for s in loading.subjects.values() if s.erasure_id in needs.reviews}
    needs.acknowledging |= {s.client_id for s in loading.subjects.values() if s.erasure_id in needs.begun}
    needs.merging |= {line.run_id for line in lines}
    return leavers


async def _load_who_is_forgotten(loading: Loading) -> None:
    """By the other requests whose cohorts may be cut; and who of them can still be asked."""
    others = loading.erasures.keys() - loading.needs.fences - loading.needs.reviews
    await loading.add(Subject, t.subjects.c.erasure_id.in_(others))
    await loading.add(Client, t.clients.c.needed_by.in_(others))


async def load_other_requests(loading: Loading, leaver_ids: set[UUID]) -> None:
    """After the runs are locked: two requests that are filed at once see each other."""
    f = t.federations.c
    demands = sa.select(f.id, f.four_eyes).where(f.id.in_(loading.needs.filings), f.four_eyes != "off")
    loading.note({"four_eyes": {row.id: row.four_eyes for row in await loading.connection.execute(demands)}})
    s = t.subjects.c
    open_ones = sa.select(t.erasures.c.id).where(t.erasures.c.federation_id.in_(loading.needs.filings))
    subjects = await loading.add(Subject, s.client_id.in_(leaver_ids) | (s.active & s.erasure_id.in_(open_ones)))
    ids = {subject.erasure_id for subject in subjects}
    await loading.add(Erasure, t.erasures.c.id.in_(ids) | t.erasures.c.duplicate_of.in_(ids))


async def widen_to_runs_of(loading: Loading, client_ids: set[UUID]) -> None:
    """Runs with these clients, and runs whose initial model is one that such a run published."""
    touched = (
        sa.select(t.cohorts.c.run_id)
        .join(t.members, t.members.c.cohort_id == t.cohorts.c.id)
        .where(t.members.c.client_id.in_(client_ids))
        .distinct()
    )
    loading.whole |= set((await loading.connection.execute(touched)).scalars())
    loading.whole = await _with_runs_begun_from(loading, loading.whole)


async def _with_runs_begun_from(loading: Loading, run_ids: set[UUID]) -> set[UUID]:
    """These runs, those whose initial model is one that such a run published, and so on."""
    made, begun = t.checkpoints, t.checkpoints.alias("begun")
    old, new = t.runs, t.runs.alias("new")
    all_of_them = set(run_ids)
    while all_of_them:
        of_them = (made.c.kind != "init") & made.c.run_id.in_(all_of_them)
        is_own = (made.c.digest == begun.c.digest) & (old.c.federation_id == new.c.federation_id)
        statement = (
            sa.select(begun.c.run_id)
            .join(new, new.c.id == begun.c.run_id)
            .where(begun.c.kind == "init", begun.c.run_id.not_in(all_of_them))
            .where(begun.c.digest.in_(sa.select(made.c.digest).where(of_them)))  # thousands may have the same
            .where(sa.exists().where(of_them, old.c.id == made.c.run_id, is_own))
            .distinct()
        )
        found = set((await loading.connection.execute(statement)).scalars())
        if not found:
            break
        all_of_them |= found
    return all_of_them


async def load_what_methods_need(loading: Loading) -> None:
    """The lines that an erasure's method works on, and the round that it looks up."""
    mended = (
        {c.id for c in loading.cohorts.values() if c.unlearning is not None} if loading.needs.steps_program else set()
    )
    if mended:
        await loading.add_by(AffectedCohort, t.lines.c.cohort_id, mended)
    if loading.needs.resuming:
        await loading.add(AffectedCohort, t.lines.c.run_id.in_(loading.needs.resuming))
    if loading.needs.reviews:
        own = t.lines.c.erasure_id.in_(loading.needs.reviews) & (t.lines.c.action == "unlearned")
        since = t.lines.c.epoch_after <= t.checkpoints.c.epoch
        is_before = t.lines.c.head_before == t.checkpoints.c.digest
        made = (t.lines.c.cohort_id == t.checkpoints.c.cohort_id) & (since | is_before)
        await loading.add(Checkpoint, sa.exists().where(own, made))
        audited = sa.select(t.lines.c.cohort_id).where(own)
        await loading.add(Update, t.updates.c.cohort_id.in_(audited), t.updates.c.kind == "audit")
        await loading.add(Task, t.tasks.c.cohort_id.in_(audited), t.tasks.c.kind == "audit")
    if loading.mended:
        await _load_what_may_be_given_up(loading)
    if loading.needs.recalled:
        among = t.contributions.c.checkpoint_id.in_(loading.needs.recalled)
        found = await loading.add(Contribution, among)
        await _load_copies(loading, await loading.add_by(Update, t.updates.c.id, {c.update_id for c in found}))
        await loading.add_by(Client, t.clients.c.id, {c.client_id for c in found} - loading.clients.keys())


async def _load_what_may_be_given_up(loading: Loading) -> None:
    """Whatever may stand on a model that a method made: it is not older than the first fence that is open."""
    x, fences = t.checkpoints.c, [one.fenced_at for one in loading.erasures.values() if one.fenced_at is not None]
    own, inits = x.run_id.in_(loading.mended), t.checkpoints.alias("inits")
    begun = sa.select(inits.c.digest).where(inits.c.run_id.in_(loading.mended), inits.c.kind == "init")
    is_new = x.created_at >= min(fences) - _CLOCKS_DIFFER
    found = await loading.add(Checkpoint, (own & is_new) | x.digest.in_(begun))
    await loading.add_by(Run, t.runs.c.id, {one.run_id for one in found} - loading.runs.keys())
    await loading.add_by(Parent, t.parents.c.checkpoint_id, {one.id for one in found})


async def load_lineage(loading: Loading, leaver_ids: set[UUID]) -> None:
    whole, merging = loading.whole, loading.needs.merging
    if loading.needs.models:
        same = t.checkpoints.c.digest.in_(loading.needs.models)
        await loading.add(Checkpoint, same)
        await loading.add(Run, t.runs.c.id.in_(sa.select(t.checkpoints.c.run_id).where(same)))
    if whole:
        of_run = t.checkpoints.c.run_id.in_(whole)
        await loading.add(Checkpoint, of_run)
        checkpoint_ids = sa.select(t.checkpoints.c.id).where(of_run)
        await loading.add(Parent, t.parents.c.checkpoint_id.in_(checkpoint_ids))
        by_leaver = t.contributions.c.client_id.in_(leaver_ids)
        await loading.add(Contribution, by_leaver, t.contributions.c.checkpoint_id.in_(checkpoint_ids))
        heads = [c.head_id for c in loading.cohorts.values() if c.run_id in whole and c.head_id is not None]
        in_heads = sa.select(t.contributions.c.update_id).where(t.contributions.c.checkpoint_id.in_(heads), by_leaver)
        await _load_copies(loading, await loading.add(Update, t.updates.c.id.in_(in_heads)))
        gone = () if loading.needs.all_stay else leaver_ids
        traffic = await erasure_costs.traffic(loading.connection, loading.cohorts_of(whole), gone)
        archives = await erasure_costs.archives(loading.connection, whole, leaver_ids)
        loading.note({"traffic": traffic, "archives": archives})
    if merging:
        heads = [c.head_id for c in loading.cohorts.values() if c.run_id in merging and c.head_id is not None]
        await loading.add(Checkpoint, t.checkpoints.c.id.in_(heads))
        await loading.add(Parent, t.parents.c.checkpoint_id.in_(heads))
    if whole or merging:
        await _load_samples(loading, whole | merging)


async def _load_samples(loading: Loading, run_ids: set[UUID]) -> None:
    """What the cohorts of each run weigh when they are merged. A run of one cohort has nothing to merge."""
    num_cohorts = Counter(cohort.run_id for cohort in loading.cohorts.values())
    merged = {run_id for run_id in run_ids if num_cohorts[run_id] > 1}
    rows = await loading.connection.execute(last_reported(merged)) if merged else ()
    loading.note({"samples": {(row.cohort_id, row.client_id): row.num_samples for row in rows}})


def last_reported(run_ids: set[UUID]) -> sa.Select[UUID, UUID, int]:
    """Cohort, client and the samples that it last reported there. Each update is looked at once."""
    u = t.updates.c
    newest_first = sa.func.row_number().over(
        partition_by=(u.cohort_id, u.client_id), order_by=(u.received_at.desc(), u.id.desc())
    )
    reported = (
        sa.select(u.cohort_id, u.client_id, u.num_samples, newest_first.label("place"))
        .where(u.run_id.in_(run_ids), u.kind == "train")
        .subquery()
    )
    return sa.select(reported.c.cohort_id, reported.c.client_id, reported.c.num_samples).where(reported.c.place == 1)


async def _load_copies(loading: Loading, updates: Iterable[Update]) -> None:
    """Which of the updates are in the sealed history."""
    found = await kept_updates.copied(loading.connection, [update.id for update in updates])
    loading.note({"kept": found})


async def lock_newcomers(loading: Loading) -> None:
    """Filing a request locks its clients as well: either it is seen here, or its fence sees the new members."""
    if loading.needs.joining:
        wanted = sa.tuple_(t.clients.c.federation_id, t.clients.c.name).in_(sorted(loading.needs.joining, key=str))
        found = {client.id for client in await loading.add(Client, wanted, lock=True)}
        await loading.add(Subject, t.subjects.c.client_id.in_(found) & t.subjects.c.active)
