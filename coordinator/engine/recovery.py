"""How far a request to forget is: which of its lines are clean, done, or held up, and by what."""

from __future__ import annotations

from datetime import timedelta

from coordinator.engine import events as e
from coordinator.engine import families, mending
from coordinator.engine import messages as m
from coordinator.engine.audits import failure, review_audit
from coordinator.engine.draft import Draft
from coordinator.engine.entities import GIVEN_UP, Cohort, Erasure, Line, Run
from coordinator.engine.erasures import request, settle
from coordinator.engine.exclusions import overdue, unacknowledged, unknown_samples


def review_erasure(draft: Draft, message: m.ReviewErasure) -> None:
    """See how far the lines are; move the request on when all are."""
    erasure = draft.state.erasures[message.erasure_id]
    if erasure.fenced_at is None:
        _review_unfenced(draft, erasure)
        return
    if erasure.status not in ("fenced", "executing", "requires_action") or erasure.is_held:
        return
    if wrong := unknown_samples(draft.state, erasure):
        settle(draft, erasure, "failed", wrong)
        return
    for line in _lines(draft, erasure):
        if mending.gave_up(draft.state.cohorts[line.cohort_id]) and erasure.fallback == "retrain":
            mending.fall_back(draft, line)
        _review_line(draft, draft.state.lines[line.key])
    lines = _lines(draft, erasure)
    if problem := overdue(draft, erasure) or next(filter(None, (_problem(draft, line) for line in lines)), None):
        if erasure.status != "requires_action" or erasure.reason != problem:
            draft.emit(e.ErasureMoved(erasure.id, "requires_action", problem))
        return
    if erasure.status != "executing":
        draft.emit(e.ErasureMoved(erasure.id, "executing"))
    is_merging = any(families.is_merging(draft.state, draft.state.runs[line.run_id]) for line in lines)
    if is_merging or any(line.clean_at is None for line in lines):
        return
    if erasure.first_clean_at is None:
        draft.emit(e.ErasureMoved(erasure.id, "executing", first_clean_at=draft.now))
    all_done = all(line.done_at is not None for line in lines) and not unacknowledged(draft.state, erasure)
    if all_done and _is_audited(draft, erasure):
        for client in sorted(draft.state.clients.values(), key=lambda c: c.id):
            if client.needed_by == erasure.id:
                draft.emit(e.ClientReleased(client.id))
        draft.emit(e.ErasureMoved(erasure.id, "verifying"))
        request(draft, erasure, "purge")


def _review_unfenced(draft: Draft, erasure: Erasure) -> None:
    """See whether the workers have said that they have the samples; the fence falls when all have."""
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
        request(draft, erasure, "fence")


def _is_audited(draft: Draft, erasure: Erasure) -> bool:
    """Whether every mended line has shown what the request asks for. One that has not is trained again, or held."""
    audited = [review_audit(draft, erasure, line) for line in _lines(draft, erasure)]  # of all lines side by side
    if not all(audited):
        return False
    failed = [line for line in _lines(draft, erasure) if not mending.passed(line)]
    if failed and erasure.fallback is None:
        draft.emit(e.ErasureMoved(erasure.id, "requires_action", failure(failed[0]), is_held=True))
    elif failed:
        for line in failed:
            mending.fall_back(draft, line)
    return not failed


def _lines(draft: Draft, erasure: Erasure) -> list[Line]:
    own = [line for line in draft.state.lines.values() if line.erasure_id == erasure.id]
    return sorted(own, key=lambda line: (line.run_id, line.cohort_name))


def _review_line(draft: Draft, line: Line) -> None:
    """Mark a line that is clean, or done: it has the round it had, or its cohort has ended, or nobody goes on with the
    run. The merged model is then made anew, once; the line waits while another merge is under way."""
    cohort, run = draft.state.cohorts[line.cohort_id], draft.state.runs[line.run_id]
    is_over = cohort.phase in ("finished", "retired") or run.status in GIVEN_UP
    is_mended = cohort.head_id is not None and cohort.unlearning is None
    if line.clean_at is None and (is_mended or is_over):
        draft.emit(e.LineClean(line.erasure_id, cohort.id, draft.now))
    reached = is_mended and cohort.round >= line.target_round
    if line.done_at is None and (reached or is_over) and not families.is_merging(draft.state, run):
        draft.emit(e.LineDone(line.erasure_id, cohort.id, draft.now))
        families.refresh_merge(draft, run)


def _problem(draft: Draft, line: Line) -> str | None:
    """What keeps a line from going on by itself, if anything does."""
    cohort, run = draft.state.cohorts[line.cohort_id], draft.state.runs[line.run_id]
    if run.status == "paused" and (line.done_at is None or families.is_merging(draft.state, run)):
        return f"run {run.name} is paused: {run.reason}"
    if line.done_at is not None:
        return None
    if cohort.unlearning is not None and "stopped" in cohort.unlearning:
        return f"{cohort.unlearning['method']} gave up in cohort {cohort.name}: {cohort.unlearning['stopped']}"
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
