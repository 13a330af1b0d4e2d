"""Forgetting single samples: the client stays and leaves them out from the fence on.

A request writes an exclusion for each client. Until the client's worker has it in its ledger on disk and says so, the
client gets no task; every new session has to say so again, because another machine may have another ledger. Only the
worker knows which samples there are: nothing is fenced before it has said that it has them.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final
from uuid import UUID

from coordinator.engine import events as e
from coordinator.engine import messages as m
from coordinator.engine.draft import Draft
from coordinator.engine.entities import Erasure, Exclusion, State
from coordinator.engine.work import working_client
from services.core.digests import of_json
from services.core.errors import Rejected

PATIENCE: Final = timedelta(seconds=60)
"""After this long without an acknowledgement the request says that it waits for the worker."""


def same_request(state: State, message: m.FileErasure) -> UUID | None:
    """The open request that already forgets these samples. Refused when completed ones have forgotten them all."""
    wanted = {name: frozenset(samples) for name, samples in message.samples.items()}
    others = [r for r in state.erasures.values() if r.scope == "samples" and r.duplicate_of is None]
    for request in sorted(others, key=lambda r: r.id):
        is_open = request.status not in ("completed", "denied", "cancelled", "failed")
        if is_open and all(samples <= set(request.samples.get(name, ())) for name, samples in wanted.items()):
            return request.id
    completed = [r.samples for r in others if r.status == "completed"]
    if all(samples <= {i for one in completed for i in one.get(name, ())} for name, samples in wanted.items()):
        raise Rejected("already-erased", "all these samples were erased before; the certificates still stand")
    return None


def order(draft: Draft, erasure: Erasure) -> None:
    """Tell each client which samples to leave out. One that is no longer active gets no task anyway."""
    for subject in sorted(draft.state.subjects.values(), key=lambda s: s.name):
        if subject.erasure_id != erasure.id or draft.state.clients[subject.client_id].status != "active":
            continue
        if (erasure.id, subject.client_id) in draft.state.exclusions:
            continue
        samples = sorted(erasure.samples[subject.name])
        exclusion = Exclusion(erasure.id, subject.client_id, subject.name, samples, draft.now)
        known = [x for x in draft.state.exclusions.values() if x.client_id == subject.client_id]
        draft.emit(e.SamplesExcluded(exclusion, digest([*known, exclusion])))


def digest(of_client: list[Exclusion]) -> str:
    return of_json(sorted([str(x.erasure_id), *x.samples] for x in of_client))


def acknowledge(draft: Draft, message: m.AcknowledgeExclusions) -> None:
    client = working_client(draft, message.client_id)
    if client.exclusions != message.digest:
        raise Rejected("conflict", "what must be left out has changed meanwhile; read /v1/exclusions again")
    if message.problem is not None:
        draft.emit(e.ExclusionsRefused(client.id, message.problem))
    else:
        draft.emit(e.ExclusionsAcknowledged(client.id, draft.now, dict(message.unknown)))


def unacknowledged(state: State, erasure: Erasure) -> list[Exclusion]:
    """The orders that no worker has acknowledged, of clients that may still be given tasks, by the client's name."""
    own = [x for x in state.exclusions.values() if x.erasure_id == erasure.id and x.acked_at is None]
    return sorted((x for x in own if state.clients[x.client_id].status == "active"), key=lambda x: x.client_name)


def unknown_samples(state: State, erasure: Erasure) -> str | None:
    """A request that names samples which are not there was not understood alike on both sides: it fails."""
    for exclusion in sorted(state.exclusions.values(), key=lambda x: x.client_name):
        if exclusion.erasure_id == erasure.id and exclusion.unknown:
            rows = ", ".join(map(str, exclusion.unknown))
            return f"client {exclusion.client_name} has no samples {rows}; check the numbers and file again"
    return None


def unconfirmed(state: State, erasure: Erasure) -> str | None:
    """Why the fence waits, if a worker still has to confirm."""
    names = ", ".join(x.client_name for x in unacknowledged(state, erasure)[:5])
    return f"nothing is fenced before the worker has confirmed that it has these samples: {names}" if names else None


def overdue(draft: Draft, erasure: Erasure) -> str | None:
    """Which worker the request waits for, once it has waited for long or the worker said why it cannot go on."""
    for exclusion in unacknowledged(draft.state, erasure):
        if exclusion.problem is not None:
            return f"client {exclusion.client_name} cannot leave its samples out: {exclusion.problem}"
        if draft.now - exclusion.ordered_at > PATIENCE:
            name, since = exclusion.client_name, exclusion.ordered_at.isoformat(timespec="seconds")
            return f"client {name} has not acknowledged the samples to leave out since {since}; start its worker"
    return None
