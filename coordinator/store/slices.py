"""What each message needs to see, loaded for a whole batch at once and locked so that it stays true.

Lock order: run rows before cohort rows, each in id order. A training message locks its cohort only; messages that
change a run lock the run and all its cohorts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.engine.entities import NOTHING_LOADED, Client, Delivery, Exclusion, Run, State
from coordinator.engine.messages import Message, needs_of
from coordinator.engine.needs import Needs
from coordinator.store import loading_blobs, loading_erasures, loading_work
from coordinator.store import tables as t
from coordinator.store.loading import Loading


async def load(connection: AsyncConnection, messages: Sequence[Message[Any]], known: State = NOTHING_LOADED) -> State:
    """`known` plus what these messages need. Records already known win: they may carry changes not yet written."""
    needs = needs_of(messages)
    loading = Loading(connection, needs, known.with_loaded(needs.tables()))
    needs.erasures |= needs.fences | needs.reviews | needs.announced | needs.begun
    needs.tasks |= needs.submitted
    leaver_ids = await loading_erasures.load_requests(loading)
    needs.runs |= loading.whole | needs.merging
    if needs.announced or needs.deliveries:
        of_request = t.deliveries.c.erasure_id.in_(needs.announced)
        await loading.add(Delivery, of_request | t.deliveries.c.id.in_(needs.deliveries), lock=True)
    await loading_erasures.lock_newcomers(loading)
    if needs.runs:
        await loading.add_by(Run, t.runs.c.id, needs.runs, lock=True)
    if needs.filings:
        await loading_erasures.load_other_requests(loading, leaver_ids)
    await loading_work.lock_cohorts(loading)
    await loading_work.load_tasks(loading)
    await loading_work.load_jobs_and_rounds(loading)
    await _load_clients(loading, leaver_ids)
    await loading_work.load_what_newcomers_are_measured_against(loading)
    await loading_work.load_rounds_to_walk(loading)
    await loading_erasures.load_what_methods_need(loading)
    if needs.federations:
        await loading.add(Client, t.clients.c.federation_id.in_(needs.federations))
    if run_ids := {c.run_id for c in loading.cohorts.values()} - loading.runs.keys():
        await loading.add_by(Run, t.runs.c.id, run_ids)
    await loading_work.load_updates(loading)
    await loading_work.load_members(loading)
    await loading_erasures.load_lineage(loading, leaver_ids)
    await loading_blobs.load_blobs(loading)
    return loading.state


async def load_lineage(connection: AsyncConnection, client_ids: set[UUID]) -> State:
    """The models of every run that one of the clients was ever in, or that began with a model of such a run, with
    their parents and the clients' contributions."""
    loading = Loading(connection, Needs(), State())
    await loading_erasures.widen_to_runs_of(loading, client_ids)
    await loading_erasures.load_lineage(loading, client_ids)
    return loading.state


async def _load_clients(loading: Loading, leaver_ids: set[UUID]) -> None:
    needs = loading.needs
    changing = needs.restarting | needs.opening | needs.leaving | needs.acknowledging | leaver_ids
    if changing:
        await loading.add_by(Client, t.clients.c.id, changing, lock=True)
    if client_ids := (needs.clients | needs.claimants) - changing:
        await loading.add_by(Client, t.clients.c.id, client_ids)
    if leaver_ids or needs.acknowledging:
        await loading.add_by(Exclusion, t.exclusions.c.client_id, leaver_ids | needs.acknowledging)
    if needs.mentioned:
        wanted = sa.tuple_(t.clients.c.federation_id, t.clients.c.name).in_(sorted(needs.mentioned, key=str))
        await loading.add(Client, wanted)
