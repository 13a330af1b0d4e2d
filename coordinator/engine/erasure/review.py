"""The review of a request under way: which of its cohorts are clean, done or held up, and what follows from that."""

from __future__ import annotations

from datetime import timedelta

from coordinator.engine import events as e
from coordinator.engine import families
from coordinator.engine import messages as m
from coordinator.engine.draft import Draft
from coordinator.engine.entities import GIVEN_UP, AffectedCohort, Cohort, Erasure, Run
from coordinator.engine.erasure import fallback
from coordinator.engine.erasure.audit import failure, review_audit
from coordinator.engine.erasure.completion import settle
from coordinator.engine.erasure.samples import overdue, unacknowledged, unknown_samples


def review_erasure(draft: Draft, message: m.ReviewErasure) -> None:
    """See how far the cohorts are; move the request on when all are there."""
    erasure = draft.state.erasures[message.erasure_id]
    if erasure.fenced_at is None:
        _review_unfenced(draft, erasure)
        return
    if erasure.status not in ("fenced", "executing", "requires_action") or erasure.is_held:
        return
    if wrong := unknown_samples(draft.state, erasure):
        settle(draft, erasure, "failed", wrong)
        return
    for one in _affected(draft, erasure):
        if fallback.gave_up(draft.state.cohorts[one.cohort_id]) and erasure.fallback is not None:
            fallback.fall_back(draft, one)
        _review_cohort(draft, draft.state.affected_cohorts[one.key])
    affected = _affected(draft, erasure)
    if problem := overdue(draft, erasure) or next(filter(None, (_problem(draft, one) for one in affected)), None):
        if erasure.status != "requires_action" or erasure.reason != problem:
            draft.emit(e.ErasureMoved(erasure.id, "requires_action", problem))
        return
    if erasure.status != "executing":
        draft.emit(e.ErasureMoved(erasure.id, "executing"))
    is_merging = any(families.is_merging(draft.state, draft.state.runs[one.run_id]) for one in affected)
    if is_merging or any(one.clean_at is None for one in affected):
        return
    if erasure.first_clean_at is None:
        draft.emit(e.ErasureMoved(erasure.id, "executing", first_clean_at=draft.now))
    all_done = all(one.done_at is not None for one in affected) and not unacknowledged(draft.state, erasure)
    if all_done and _is_audited(draft, erasure):
        for client in sorted(draft.state.clients.values(), key=lambda c: c.id):
            if client.needed_by == erasure.id:
                draft.emit(e.ClientReleased(client.id))
        draft.emit(e.ErasureMoved(erasure.id, "verifying"))
        draft.request(erasure, "purge", {"erasure_id": str(erasure.id)})


def _review_unfenced(draft: Draft, erasure: Erasure) -> None:
    """See whether the workers have said that they have the samples; when all have, the fence is put up."""
    if erasure.duplicate_of is not None:
        return
    if erasure.status not in ("received", "requires_action") or erasure.reason is None or erasure.is_held:
        return
    if wrong := unknown_samples(draft.state, erasure):
        settle(draft, erasure, "failed", f"{wrong}; nothing was fenced")
    elif problem := overdue(draft, erasure):
        if erasure.reason != problem:
            draft.emit(e.ErasureMoved(erasure.id, "requires_action", problem))
    elif not unacknowledged(draft.state, erasure):
        draft.emit(e.ErasureMoved(erasure.id, "received"))
        draft.request(erasure, "fence", {"erasure_id": str(erasure.id)})


def _is_audited(draft: Draft, erasure: Erasure) -> bool:
    """Whether every mended cohort has shown what the request asks for. One that has not is trained again, or held."""
    audited = [review_audit(draft, erasure, one) for one in _affected(draft, erasure)]  # of all cohorts side by side
    if not all(audited):
        return False
    failed = [one for one in _affected(draft, erasure) if not fallback.passed(one)]
    if failed and erasure.fallback is None:
        draft.emit(e.ErasureMoved(erasure.id, "requires_action", failure(failed[0]), is_held=True))
    elif failed:
        for one in failed:
            fallback.fall_back(draft, one)
    return not failed


def _affected(draft: Draft, erasure: Erasure) -> list[AffectedCohort]:
    own = [one for one in draft.state.affected_cohorts.values() if one.erasure_id == erasure.id]
    return sorted(own, key=lambda one: (one.run_id, one.cohort_name))


def _review_cohort(draft: Draft, affected: AffectedCohort) -> None:
    """Mark a cohort that is clean, or done: it has recovered, or it has ended, or nobody goes on with the run. The
    merged model is then made anew, once; the cohort waits while another merge is under way."""
    cohort, run = draft.state.cohorts[affected.cohort_id], draft.state.runs[affected.run_id]
    is_over = cohort.phase in ("finished", "retired") or run.status in GIVEN_UP
    is_mended = cohort.head_id is not None and cohort.unlearning is None
    if affected.clean_at is None and (is_mended or is_over):
        draft.emit(e.AffectedCohortClean(affected.erasure_id, cohort.id, draft.now))
    has_recovered = is_mended and cohort.round >= affected.target_round
    if affected.done_at is None and (has_recovered or is_over) and not families.is_merging(draft.state, run):
        draft.emit(e.AffectedCohortDone(affected.erasure_id, cohort.id, draft.now))
        families.refresh_merge(draft, run)


def _problem(draft: Draft, affected: AffectedCohort) -> str | None:
    """What keeps a cohort from going on by itself, if anything does."""
    cohort, run = draft.state.cohorts[affected.cohort_id], draft.state.runs[affected.run_id]
    if run.status == "paused" and (affected.done_at is None or families.is_merging(draft.state, run)):
        return f"run {run.name} is paused: {run.reason}"
    if affected.done_at is not None:
        return None
    if cohort.unlearning is not None and cohort.unlearning.stopped is not None:
        return f"{cohort.unlearning.method} gave up in cohort {cohort.name}: {cohort.unlearning.stopped}"
    return next(filter(None, (_absence(draft, run, one) for one in families.in_step_with(draft.state, cohort))), None)


def _absence(draft: Draft, run: Run, cohort: Cohort) -> str | None:
    """Who is missing, when a round of the cohort can only be completed by clients that do not show up."""
    round = draft.state.rounds.get(cohort.awaiting) if cohort.awaiting is not None else None
    if round is None or round.status != "open" or round.due_at is not None:  # at the deadline, a quorum will do
        return None
    asked = [t for t in draft.open_tasks(cohort.id) if t.kind == round.kind and t.status != "standby"]
    if not round.is_stream:
        asked = [t for t in asked if t.round_id == round.id]
    lease = timedelta(seconds=run.spec.lease_s)
    absent = [
        task
        for task in asked
        if task.status == "ready" and (task.due_at or task.leased_at or round.opened_at) + lease < draft.now
    ]
    in_hand, needed = round.num_received, round.quorum if round.waiting_for_quorum else round.num_received + len(asked)
    if round.is_stream:
        in_hand, needed = cohort.num_buffered, max(1, min(round.quorum, cohort.num_members))
    if not absent or in_hand + len(asked) - len(absent) >= needed:
        return None
    names = ", ".join(sorted(task.client_name for task in absent)[:5])
    return (
        f"round {round.number} of cohort {cohort.name} in run {run.name} has {in_hand} of {needed} answers, and "
        f"clients do not show up ({names}); it goes on when they do, or cancel the run"
    )
