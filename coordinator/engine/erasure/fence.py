"""The fence: one decision after which nothing that was made with the leavers counts any more.

It bumps the epoch of every cohort with a leaver, revokes its work, discards what is buffered, moves the heads to clean
models and tombstones the client, in every run of the federation. Everything slow comes after.
"""

from __future__ import annotations

from uuid import UUID

from coordinator.engine import events as e
from coordinator.engine import messages as m
from coordinator.engine.allocation import begin_period
from coordinator.engine.draft import Draft
from coordinator.engine.entities import Erasure, Run, State
from coordinator.engine.erasure import cuts, cutting, planner, samples, unlearning
from coordinator.engine.erasure.completion import settle
from coordinator.engine.erasure.recovery import stage
from coordinator.engine.erasure.stages import Unlearn
from services.methods.description import Unlearning


def fence_erasure(draft: Draft, message: m.FenceErasure) -> Erasure:
    erasure = draft.state.erasures[message.erasure_id]
    is_due = erasure.awaits_fence and erasure.duplicate_of is None
    if is_due and not _are_listed(draft.state, erasure, message.listed):
        return erasure
    if message.job_id in draft.state.jobs:
        draft.emit(e.JobSettled(message.job_id, "done"))
    if not is_due:
        return erasure
    leavers = frozenset(s.client_id for s in draft.state.subjects.values() if s.erasure_id == erasure.id)
    leavers = frozenset(c for c in leavers if draft.state.clients[c].status != "erased")  # by a later request
    chosen = planner.choose(planner.options(draft.state, erasure, leavers), erasure.method)
    for run in sorted(draft.state.runs.values(), key=lambda r: r.id):
        _fence_run(draft, erasure, run, leavers, chosen)
    if erasure.scope == "samples":
        samples.order(draft, erasure)
    else:
        _take_over_samples(draft, erasure, leavers, chosen.method)
    for client_id in sorted(leavers) if erasure.scope == "client" else ():
        draft.emit(
            e.ClientErased(client_id, erasure.id, is_needed=chosen.asks_leavers(audited=erasure.audit is not None))
        )
    draft.emit(e.ErasureMoved(erasure.id, "fenced", fenced_at=draft.now, chosen=chosen.name))
    begin_period(draft, erasure.federation_id)
    return draft.state.erasures[erasure.id]


def _are_listed(state: State, erasure: Erasure, listed: frozenset[str] | None) -> bool:
    if listed is None:
        return True
    leavers = frozenset(s.client_id for s in state.subjects.values() if s.erasure_id == erasure.id)
    return all(state.checkpoints[c].digest in listed for c in cuts.tainted_checkpoints(state, leavers))


def _take_over_samples(draft: Draft, erasure: Erasure, leavers: frozenset[UUID], method: Unlearning) -> None:
    """Whoever forgets a whole client forgets its samples: open requests for these alone, not fenced yet, are carried
    out with this one. One that also names clients who stay goes on without the leavers; after an approximate method it
    could not say of their samples that they are gone, and fails."""
    names = {draft.state.clients[client_id].name for client_id in leavers}
    for other in sorted(draft.state.erasures.values(), key=lambda o: o.id):
        is_open = other.awaits_fence or other.status == "awaiting_approval"
        is_of_here = other.federation_id == erasure.federation_id
        if other.scope != "samples" or not is_open or not is_of_here or other.duplicate_of is not None:
            continue
        concerned = set(other.samples)
        if concerned <= names:
            why = f"carried out as {erasure.id}, which forgets the whole client"
            draft.emit(e.ErasureMoved(other.id, "received", why, duplicate_of=erasure.id))
        elif method.guarantee == "approximate" and names & concerned:
            left = ", ".join(sorted(names & concerned))
            settle(draft, other, "failed", f"{left} is erased by {erasure.id}; file again for the other clients")


def _fence_run(draft: Draft, erasure: Erasure, run: Run, leavers: frozenset[UUID], chosen: planner.Option) -> None:
    cut = planner.cuts(draft.state, erasure, leavers, run, chosen.method)
    methods = {one.cohort.id: _unlearn(draft, erasure, run, one, leavers, chosen) for one in cut.cuts}
    leaving = leavers if erasure.scope == "client" else frozenset[UUID]()
    if gone := _clients_of(draft.state, run) & leaving:
        draft.emit(e.RunResized(run.id, max(0, run.num_clients - len(gone))))
    cutting.supersede(draft, erasure.id, (c for c in cut.tainted if draft.state.checkpoints[c].run_id == run.id))
    cutting.cut_run(draft, erasure, run, cut, chosen.method, methods, leaving)


def _clients_of(state: State, run: Run) -> set[UUID]:
    """Everybody who ever was a member of the run."""
    return {m.client_id for m in state.members.values() if state.cohorts[m.cohort_id].run_id == run.id}


def _unlearn(
    draft: Draft, erasure: Erasure, run: Run, one: cuts.CohortCut, leavers: frozenset[UUID], chosen: planner.Option
) -> Unlearn | None:
    """The stage in which the chosen method runs, gathered while the cohort still has its head."""
    if one.action != "unlearned":
        return None
    num_rounds = planner.recovery_rounds(erasure, run, one.cohort, chosen.method)
    then = stage(erasure.recovery, run, one.cohort.round, num_rounds, one.cohort.head_digest)
    seed = draft.new_id().int % 2**62  # of an id that is used for nothing else, and so is not known
    return unlearning.gather(draft.state, erasure, one.cohort, leavers, method=chosen.name, seed=seed, then=then)
