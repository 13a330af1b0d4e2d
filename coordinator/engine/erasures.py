"""Requests to forget: filing, approval, the fence, completion. How far they are in between is in `recovery`.

Fence first: one decision bumps the epoch of every cohort with the client, revokes its work, discards what is buffered,
moves the heads to clean models and tombstones the client, in every run of the federation. Everything slow comes after.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal
from uuid import UUID

from pydantic import ValidationError

from coordinator.engine import events as e
from coordinator.engine import exclusions, families, forgetting, mending, planner, surgery
from coordinator.engine import messages as m
from coordinator.engine.draft import Draft
from coordinator.engine.entities import (
    ENDED,
    GIVEN_UP,
    SETTLED,
    Certificate,
    Client,
    Erasure,
    Job,
    Line,
    Run,
    State,
    Subject,
)
from coordinator.engine.runs import stop_cohort
from services.core.errors import Rejected
from services.unlearning.methods import METHODS, Method
from services.unlearning.rapid import plan as rapid
from services.wire.message import Message
from services.wire.v1.erasure import ErasureStatus


def file_erasure(draft: Draft, message: m.FileErasure) -> Erasure:
    if known := draft.state.erasures.get(message.erasure_id):
        return known
    clients = _subjects(draft.state, message)
    _check_method_is_known(message.method)
    _check_params(METHODS.get(message.method), message.params)
    leavers = frozenset(c.id for c in clients)
    if message.is_tombstoned:
        _withdraw_others(draft, set(leavers))
    duplicate_of = _same_request(draft.state, clients)
    if duplicate_of is None and not message.is_tombstoned and message.scope == "samples":
        duplicate_of = exclusions.same_request(draft.state, message)
    if duplicate_of is None:
        _check_method_applies(draft.state, message, leavers)
    erasure = Erasure(
        id=message.erasure_id,
        federation_id=message.federation_id,
        status="awaiting_approval" if message.needs_approval and duplicate_of is None else "received",
        scope=message.scope,
        samples=dict(message.samples),
        method=message.method,
        guarantee=message.guarantee,
        regulation=message.regulation,
        requested_by=message.requested_by,
        salt=message.salt,
        created_at=draft.now,
        legal_deadline=message.legal_deadline,
        params=dict(message.params),
        recovery_rounds=message.recovery_rounds,
        fallback=message.fallback,
        audit=message.audit,
        duplicate_of=duplicate_of,
        callbacks=list(message.callbacks),
    )
    forgets_all = message.scope == "client" and duplicate_of is None
    subjects = tuple(Subject(erasure.id, c.id, c.name, active=forgets_all) for c in clients)
    draft.emit(e.ErasureFiled(erasure, subjects))
    if erasure.status == "received" and duplicate_of is None:
        begin(draft, erasure, ask_first=not message.is_tombstoned)
    return draft.state.erasures[erasure.id]


def approve_erasure(draft: Draft, message: m.ApproveErasure) -> Erasure:
    erasure = _open_request(draft.state, message, "awaiting_approval", "approved")
    draft.emit(e.ErasureMoved(erasure.id, "received"))
    begin(draft, erasure)
    return draft.state.erasures[erasure.id]


def deny_erasure(draft: Draft, message: m.DenyErasure) -> Erasure:
    erasure = _open_request(draft.state, message, "awaiting_approval", "denied")
    settle(draft, erasure, "denied", message.reason)
    return draft.state.erasures[erasure.id]


def cancel_erasure(draft: Draft, message: m.CancelErasure) -> Erasure:
    erasure = _open_request(draft.state, message, "awaiting_approval", "cancelled")
    settle(draft, erasure, "cancelled", "withdrawn by the requester")
    return draft.state.erasures[erasure.id]


def retry_erasure(draft: Draft, message: m.RetryErasure) -> Erasure:
    """Back to the review, which asks for another purge when all lines are done. A method that gave up begins again;
    what an audit refused is trained again without the client."""
    erasure = _open_request(draft.state, message, "requires_action", "tried again")
    if erasure.fenced_at is None:
        draft.emit(e.ErasureMoved(erasure.id, "received"))
        begin(draft, erasure)
        return draft.state.erasures[erasure.id]
    mending.try_again(draft, erasure)
    draft.emit(e.ErasureMoved(erasure.id, "executing"))
    return draft.state.erasures[erasure.id]


def fence_erasure(draft: Draft, message: m.FenceErasure) -> Erasure:
    erasure = draft.state.erasures[message.erasure_id]
    if message.job_id in draft.state.jobs:
        draft.emit(e.JobSettled(message.job_id, "done"))
    if not erasure.awaits_fence or erasure.duplicate_of is not None:
        return erasure
    leavers = frozenset(s.client_id for s in draft.state.subjects.values() if s.erasure_id == erasure.id)
    leavers = frozenset(c for c in leavers if draft.state.clients[c].status != "erased")  # by a later request
    chosen = planner.choose(planner.options(draft.state, erasure, leavers), erasure.method)
    for run in sorted(draft.state.runs.values(), key=lambda r: r.id):
        _fence_run(draft, erasure, run, leavers, chosen)
    if erasure.scope == "samples":
        exclusions.order(draft, erasure)
    else:
        _take_over_samples(draft, erasure, leavers, chosen.method)
    for client_id in sorted(leavers) if erasure.scope == "client" else ():
        draft.emit(
            e.ClientErased(client_id, erasure.id, is_needed=chosen.asks_leavers(audited=erasure.audit is not None))
        )
    draft.emit(e.ErasureMoved(erasure.id, "fenced", fenced_at=draft.now, chosen=chosen.name))
    return draft.state.erasures[erasure.id]


def _take_over_samples(draft: Draft, erasure: Erasure, leavers: frozenset[UUID], method: Method) -> None:
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


def complete_erasure(draft: Draft, message: m.CompleteErasure) -> Erasure:
    erasure, job = draft.state.erasures[message.erasure_id], draft.state.jobs.get(message.job_id)
    is_tried_again = erasure.status == "requires_action" and job is not None and job.status == "leased"
    if job is not None:
        draft.emit(e.JobSettled(message.job_id, "done"))
    if not (erasure.status == "verifying" or is_tried_again) or erasure.version != message.version:
        return erasure
    draft.emit(e.CertificateIssued(Certificate(erasure.id, message.envelope, draft.now)))
    settle(draft, erasure, "completed", None)
    return draft.state.erasures[erasure.id]


def hold_erasure(draft: Draft, message: m.HoldErasure) -> Erasure:
    erasure = draft.state.erasures[message.erasure_id]
    if message.job_id is not None and message.job_id in draft.state.jobs:
        draft.emit(e.JobSettled(message.job_id, "done"))
    is_news = erasure.status != "requires_action" or erasure.reason != message.reason
    if (
        erasure.status in ("received", "verifying", "requires_action")
        and erasure.version == message.version
        and is_news
    ):
        draft.emit(e.ErasureMoved(erasure.id, "requires_action", message.reason, is_held=True))
    return draft.state.erasures[erasure.id]


def begin(draft: Draft, erasure: Erasure, *, ask_first: bool = True) -> None:
    """Fence, or first ask the workers whether they have the samples to be forgotten."""
    if erasure.scope == "samples" and ask_first:
        exclusions.order(draft, erasure)
        if waiting := exclusions.unconfirmed(draft.state, erasure):
            draft.emit(e.ErasureMoved(erasure.id, "received", waiting))
            return
    request(draft, erasure, "fence")


def settle(draft: Draft, erasure: Erasure, status: ErasureStatus, reason: str | None) -> None:
    """End a request, and with it those that ask for the same."""
    draft.emit(e.ErasureMoved(erasure.id, status, reason, completed_at=draft.now))
    for other in sorted(draft.state.erasures.values(), key=lambda o: o.id):
        if other.duplicate_of == erasure.id and other.status not in SETTLED:
            why = f"carried out as {erasure.id}" if status == "completed" else f"{status} with {erasure.id}: {reason}"
            draft.emit(e.ErasureMoved(other.id, status, why, completed_at=draft.now))


# --- filing -----------------------------------------------------------------------------------------------------------


def _check_params(method: Method | None, params: Mapping[str, Any]) -> None:
    """`auto` takes none: they would be those of a method that is not chosen yet."""
    try:
        (method.spec if method is not None else Message).model_validate(params)
    except ValidationError as error:
        where = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()[:3])
        raise Rejected("invalid-request", f"params do not fit the method: {where}") from None


def _subjects(state: State, message: m.FileErasure) -> list[Client]:
    by_name = {c.name: c for c in state.clients.values() if c.federation_id == message.federation_id}
    missing = [name for name in message.subjects if name not in by_name]
    if missing:
        raise Rejected("not-found", f"this federation has no client {missing[0]}")
    return sorted((by_name[name] for name in set(message.subjects)), key=lambda c: c.name)


def _same_request(state: State, clients: list[Client]) -> UUID | None:
    """The open request that already forgets these clients, before or after its fence."""
    client_ids = {c.id for c in clients}
    own = [s for s in state.subjects.values() if s.client_id in client_ids]
    active = {s.client_id: s.erasure_id for s in own if s.active}
    for client in clients:
        if client.status == "erased" and client.id not in active:
            by = next(s.erasure_id for s in own if s.client_id == client.id and _has_fenced(state, s.erasure_id))
            raise Rejected("already-erased", f"client {client.name} was erased by request {by}; its certificate stands")
    if not active:
        return None
    requests = set(active.values())
    if len(requests) == 1 and set(active) == client_ids:
        return requests.pop()
    raise Rejected("conflict", "another open request forgets some of these clients; file for the others alone")


def _withdraw_others(draft: Draft, client_ids: set[UUID]) -> None:
    under_way = {s.erasure_id for s in draft.state.subjects.values() if s.active and s.client_id in client_ids}
    for erasure_id in sorted(under_way):
        settle(draft, draft.state.erasures[erasure_id], "cancelled", "another request was carried out for its clients")


def _has_fenced(state: State, erasure_id: UUID) -> bool:
    erasure = state.erasures[erasure_id]
    return erasure.scope == "client" and erasure.fenced_at is not None


def _check_method_is_known(method: str) -> None:
    if method != planner.AUTO and method not in METHODS:
        known_names = ", ".join([planner.AUTO, *sorted(METHODS)])
        raise Rejected("method-unavailable", f"no erasure method is called {method}; known are {known_names}")


def _check_method_applies(state: State, message: m.FileErasure, leavers: frozenset[UUID]) -> None:
    if message.method == planner.AUTO:
        return
    for option in planner.options(state, message, leavers):
        if option.name == message.method and option.why_not is not None:
            raise Rejected("method-unavailable", f"{option.name} does not apply: {option.why_not}; ask for auto")


Verdict = m.ApproveErasure | m.DenyErasure | m.CancelErasure | m.RetryErasure


def _open_request(state: State, message: Verdict, status: str, what: str) -> Erasure:
    erasure = state.erasures.get(message.erasure_id)
    if erasure is None:
        raise Rejected("not-found", f"there is no erasure request {message.erasure_id}")
    if message.expected_version not in (None, erasure.version):
        raise Rejected("precondition-failed", f"the request is at version {erasure.version}; read it again")
    if erasure.status != status:
        raise Rejected("conflict", f"the request is {erasure.status}; only one that is {status} can be {what}")
    return erasure


def request(draft: Draft, erasure: Erasure, kind: Literal["fence", "purge"]) -> None:
    """Put a step that reaches outside the database into the outbox."""
    job = Job(
        id=draft.new_id(),
        run_id=None,
        cohort_id=None,
        federation_id=erasure.federation_id,
        epoch=0,
        kind=kind,
        kernel=None,
        params={"erasure_id": str(erasure.id)},
        inputs=[],
        status="ready",
        created_at=draft.now,
    )
    draft.emit(e.JobRequested(job))


# --- the fence --------------------------------------------------------------------------------------------------------


def _fence_run(draft: Draft, erasure: Erasure, run: Run, leavers: frozenset[UUID], chosen: planner.Option) -> None:
    cut = planner.cuts(draft.state, erasure, leavers, run, chosen.method)
    known = {one.cohort.id: _gather(draft, erasure, run, one, leavers, chosen) for one in cut.cuts}
    leaving = leavers if erasure.scope == "client" else frozenset[UUID]()
    if gone := _clients_of(draft.state, run) & leaving:
        draft.emit(e.RunResized(run.id, max(0, run.num_clients - len(gone))))
    own = [draft.state.checkpoints[c] for c in cut.tainted if draft.state.checkpoints[c].run_id == run.id]
    if tainted := tuple(sorted(c.id for c in own if c.superseded_by is None)):
        draft.emit(e.CheckpointsSuperseded(tainted, erasure.id))
    for one in cut.cuts:
        stop_cohort(draft, draft.state.cohorts[one.cohort.id])
        for client_id in sorted(leaving):
            member = draft.state.members.get((one.cohort.id, client_id))
            if member is not None and member.active:
                draft.emit(e.MemberLeft(one.cohort.id, client_id))
    for one in cut.cuts:
        _cut_cohort(draft, erasure, run, one, chosen, known[one.cohort.id])
    for cohort_id, parent_id in sorted(cut.moved.items(), key=lambda item: str(item[0])):
        draft.emit(e.CohortMoved(cohort_id, parent_id))
    merging = _fence_merged(draft, run, cut)
    if cut.cuts:
        _measure_newcomers_again(draft, run)
    if run.status not in ENDED and any(one.action == "retired" for one in cut.cuts):
        params = {"message": "SettleRun", "run_id": str(run.id)}
        draft.request(draft.state.cohorts[cut.cuts[0].cohort.id], "post", params)
    retraining = any(one.action != "retired" for one in cut.cuts)
    if run.status == "completed" and (merging or retraining):
        draft.emit(e.RunReopened(run.id, "retraining without what was erased"))
    elif run.status == "completed" and cut.cuts and not _has_lines(draft.state, run):
        reason = "an erasure left no cohort of the run: it serves no model any more"
        draft.emit(e.RunEnded(run.id, "completed", reason, draft.now))


def _has_lines(state: State, run: Run) -> bool:
    return any(c.kind != "merge" and c.phase != "retired" for c in families.cohorts_of(state, run.id))


def _clients_of(state: State, run: Run) -> set[UUID]:
    """Everybody who ever was a member of the run."""
    return {m.client_id for m in state.members.values() if state.cohorts[m.cohort_id].run_id == run.id}


def _gather(
    draft: Draft, erasure: Erasure, run: Run, one: surgery.CohortCut, leavers: frozenset[UUID], chosen: planner.Option
) -> dict[str, Any] | None:
    """What the method is told of a line, while the line still has its head."""
    if one.action != "unlearned":
        return None
    rounds = planner.recovery_rounds(erasure, run, one.cohort, chosen.method)
    seed = draft.new_id().int % 2**62  # of an id that is used for nothing else, and so is not known
    return forgetting.gather(draft.state, erasure, chosen.name, one.cohort, leavers, seed=seed, recovery_rounds=rounds)


def _cut_cohort(
    draft: Draft,
    erasure: Erasure,
    run: Run,
    one: surgery.CohortCut,
    chosen: planner.Option,
    unlearning: dict[str, Any] | None,
) -> None:
    cohort, state = draft.state.cohorts[one.cohort.id], draft.state
    line = Line(
        erasure_id=erasure.id,
        cohort_id=cohort.id,
        run_id=run.id,
        cohort_name=cohort.name,
        action=one.action,
        epoch_before=cohort.epoch,
        epoch_after=cohort.epoch + 1,
        round_at_fence=cohort.round,
        target_round=cohort.round,
        head_before=cohort.head_digest,
        rollback_digest=one.clean.digest if one.clean is not None and one.action == "rolled-back" else None,
    )
    fenced = e.CohortFenced(cohort.id, cohort.epoch + 1, None, None, 0)
    match one.action:
        case "retired":
            draft.emit(fenced)
            draft.emit(e.CohortRetired(cohort.id, "none of its members is left, or another cohort took its place"))
            line = replace(line, clean_at=draft.now, done_at=draft.now)
        case "rolled-back":
            if one.clean is not None:
                fenced = replace(fenced, head_id=one.clean.id, head_digest=one.clean.digest, round=one.clean.round)
            if chosen.name == "rapid":
                fenced = replace(fenced, recovery=rapid.recovery(erasure.params, fenced.round, cohort.round))
            draft.emit(fenced)
        case "re-initialised":
            sources = [families.source(draft, state.cohorts[cohort_id]) for cohort_id in one.sources]
            target = cohort.round + planner.recovery_rounds(erasure, run, cohort, chosen.method)
            extra = max(0, target - run.spec.stop.rounds - cohort.extra_rounds)
            draft.emit(replace(fenced, round=cohort.round, sources=tuple(sources), extra_rounds=extra))
            line = replace(line, sources=sources, target_round=target)
        case "unlearned":
            draft.emit(replace(fenced, unlearning=unlearning))
            if one.clean is not None:
                kept = {"id": str(one.clean.id), "digest": one.clean.digest, "round": one.clean.round}
                line = replace(line, fallback=kept)
    if run.status in GIVEN_UP and one.action != "retired":
        draft.emit(e.CohortEnded(cohort.id, "finished", f"the run was {run.status}"))
        line = replace(line, clean_at=draft.now, done_at=draft.now)
    draft.emit(e.LineFenced(line))
    mending.plan_others_again(draft, line)


def _measure_newcomers_again(draft: Draft, run: Run) -> None:
    """A newcomer that is being compared with the profiles of others, which may be the leavers', is compared anew."""
    for cohort in families.cohorts_of(draft.state, run.id):
        if cohort.program == families.NEWCOMER and (cohort.program_state or {}).get("phase") == "measuring":
            stop_cohort(draft, cohort)
            draft.emit(e.CohortFenced(cohort.id, cohort.epoch + 1, None, None, 0))


def _fence_merged(draft: Draft, run: Run, cut: surgery.Cut) -> bool:
    """A merged model with a leaver in it is not served any more; it is made anew from what is clean, if anything is."""
    merged = families.merged_cohort(draft.state, run.id)
    if merged is None:
        return False
    is_tainted = merged.head_id in cut.tainted
    is_made_of_tainted = any(source.checkpoint_id in cut.tainted for source in families.sources_of(merged))
    if not is_tainted and not is_made_of_tainted:
        return False
    stop_cohort(draft, merged)
    head = (None, None) if is_tainted else (merged.head_id, merged.head_digest)
    draft.emit(e.CohortFenced(merged.id, merged.epoch + 1, *head, merged.round))
    sources = families.merge_sources(draft, run) if run.status not in GIVEN_UP else []
    if sources:
        draft.emit(e.CohortRestarted(merged.id, tuple(sources), merged.round + 1))
    else:
        draft.emit(e.CohortEnded(merged.id, "finished", "nothing to merge yet"))
    return bool(sources)
