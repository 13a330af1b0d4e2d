"""Carrying out programs: start or resume one, then take its steps until it has to wait or ends."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal, assert_never
from uuid import UUID

from coordinator.engine import events as e
from coordinator.engine import families, ledger, selection
from coordinator.engine.asking import asked, busy_clients, choose, leaver_tasks, new_task
from coordinator.engine.draft import Draft
from coordinator.engine.entities import (
    Checkpoint,
    Cohort,
    Contribution,
    NextRound,
    Parent,
    Round,
    Selecting,
    State,
    Update,
)
from coordinator.engine.erasure import unlearning
from coordinator.engine.erasure.recovery import extra_rounds, with_class
from coordinator.engine.erasure.stages import Unlearn
from coordinator.engine.messages import PauseRun, PlaceNewcomer, RecallRound, SettleRun, StopRun
from coordinator.engine.views import history_of, reference_to, view_of
from services.core.errors import InvariantBroken
from services.methods.running import program_named
from services.program.contract import (
    Abort,
    AskClients,
    Collected,
    Compute,
    Finish,
    FormCohorts,
    JoinCluster,
    Outcome,
    ProposeStop,
    Publish,
    Published,
    Recall,
    Recalled,
    Step,
)


def start(draft: Draft, cohort_id: UUID) -> None:
    cohort = draft.state.cohorts[cohort_id]
    view = replace(view_of(draft, cohort), history=history_of(draft, cohort))
    _perform(draft, cohort_id, *program_named(cohort.active_program).start(view))


def resume(draft: Draft, cohort_id: UUID, outcome: Outcome) -> None:
    cohort = draft.state.cohorts[cohort_id]
    if cohort.program_state is None:
        raise InvariantBroken(f"cohort {cohort_id} resumes a program that never started")
    if isinstance(cohort.pending, Selecting):
        _go_on_selecting(draft, cohort, cohort.pending, outcome)
        return
    program = program_named(cohort.active_program)
    state = program.state_type.model_validate(cohort.program_state)
    _perform(draft, cohort_id, *program.resume(state, outcome, view_of(draft, cohort)))


def collect(draft: Draft, round: Round) -> None:
    """Close a filled round over its updates, withdraw what is no longer needed, and resume the program."""
    chosen = answers_to(draft.state, round)
    if round.is_stream:
        chosen = sorted(chosen, key=lambda u: (u.received_at, u.id))[: round.quorum]
        withdrawn = [t for t in draft.open_tasks(round.cohort_id) if t.status == "standby"]
    else:
        withdrawn = [t for t in draft.open_tasks(round.cohort_id) if t.round_id == round.id]
    chosen.sort(key=lambda u: u.client_name)
    draft.emit(e.RoundClosed(round.id, tuple(u.id for u in chosen), draft.now))
    draft.revoke(withdrawn)
    selection.observe(draft, draft.state.cohorts[round.cohort_id], round.model_digest, round.kind, chosen)
    ledger.pay(draft, chosen)
    resume(draft, round.cohort_id, Collected(tuple(map(reference_to, chosen))))


def answers_to(state: State, round: Round) -> list[Update]:
    """The updates that a round may be closed over; an asynchronous one takes those of earlier rounds, too."""
    own = [u for u in state.updates.values() if u.cohort_id == round.cohort_id and u.epoch == round.epoch]
    waiting = [u for u in own if u.status == "buffered"]
    return [u for u in waiting if (u.kind == round.kind if round.is_stream else u.round_id == round.id)]


def recall(draft: Draft, message: RecallRound) -> None:
    """Resume a method with the stored updates in an old model of its cohort, without the leavers'."""
    cohort = draft.state.cohorts[message.cohort_id]
    leavers = _unlearning(cohort).forgets
    found = []
    for c in draft.state.contributions.values():
        update = draft.state.updates.get(c.update_id)
        if c.checkpoint_id != message.checkpoint_id or update is None:
            continue
        is_left = c.client_id not in leavers and draft.state.clients[c.client_id].status != "erased"
        if is_left and (digest := unlearning.recalled_digest(draft.state, c, update)) is not None:
            found.append(replace(reference_to(update), digest=digest))
    resume(draft, cohort.id, Recalled(tuple(sorted(found, key=lambda u: u.client))))


def open_rounds(draft: Draft, run_id: UUID) -> None:
    """Open the next round of the lock-step cohorts of a group, once all of them are ready for it."""
    if draft.state.runs[run_id].status != "running":
        return
    lockstep = [c for c in families.cohorts_of(draft.state, run_id) if c.is_lockstep]
    busy = {c.group for c in lockstep if c.phase in ("starting", "asking", "computing")}
    for cohort in lockstep:
        ready = cohort.phase == "waiting" and cohort.group not in busy
        if ready and isinstance(cohort.pending, NextRound) and cohort.program_state is not None:
            _ask(draft, cohort.id, cohort.pending.ask, dict(cohort.program_state))


def fail_cohort(draft: Draft, cohort_id: UUID, reason: str) -> None:
    """A kernel gave up. Without that of its selection policy a cohort goes on, by lot."""
    cohort = draft.state.cohorts[cohort_id]
    if isinstance(cohort.pending, Selecting):
        ask = cohort.pending.held
        selection.give_up(draft, cohort, cohort.pending, reason)
        _open(draft, cohort_id, ask, dict(cohort.program_state or {}))
        return
    if draft.state.cohorts[cohort_id].unlearning is not None:
        _stop_unlearning(draft, cohort_id, reason)
        return
    if draft.state.cohorts[cohort_id].finds_class:  # then clients train as they always do
        _class_found(draft, cohort_id, None, f"the class that lost most could not be found: {reason}")
        return
    _end(draft, cohort_id, e.CohortEnded(cohort_id, "failed", reason))


# --- steps ------------------------------------------------------------------------------------------------------------


def _perform(draft: Draft, cohort_id: UUID, state: Any, step: Step) -> None:
    while isinstance(step, Publish):
        _publish(draft, cohort_id, step)
        cohort = draft.state.cohorts[cohort_id]
        if cohort.finds_class:
            start(draft, cohort_id)
            return
        state, step = program_named(cohort.active_program).resume(state, Published(), view_of(draft, cohort))
    stored = state.model_dump(mode="json")
    match step:
        case AskClients():
            if draft.state.cohorts[cohort_id].waits_for_group and step.kind == "train":
                draft.emit(e.CohortWaits(cohort_id, stored, step))
            else:
                _ask(draft, cohort_id, step, stored)
        case FormCohorts(assignment=assignment):
            draft.emit(e.ProgramAdvanced(cohort_id, stored, "finished", None))
            draft.emit(e.CohortRetired(cohort_id, "its profile formed the clusters"))
            families.form_clusters(draft, draft.state.runs[draft.state.cohorts[cohort_id].run_id], assignment)
        case JoinCluster():
            cohort = draft.state.cohorts[cohort_id]
            draft.emit(e.ProgramAdvanced(cohort_id, stored, "finished", None))
            draft.post(cohort, PlaceNewcomer(cohort.run_id, cohort_id))
        case ProposeStop(reason=reason):
            cohort = draft.state.cohorts[cohort_id]
            job_id = draft.post(cohort, StopRun(cohort.run_id, cohort_id, reason))
            draft.emit(e.ProgramAdvanced(cohort_id, stored, "computing", job_id))
        case Compute():
            _compute(draft, cohort_id, step, stored)
        case Recall(round=past):
            rounds = _unlearning(draft.state.cohorts[cohort_id]).rounds
            draft.emit(e.ProgramAdvanced(cohort_id, stored, "computing", None))
            draft.emit(e.RoundRecalled(cohort_id, rounds.get(past)))
        case Finish(reason=reason, figures=figures) if draft.state.cohorts[cohort_id].finds_class:
            found = figures.get("skewed_class")
            _class_found(draft, cohort_id, None if found is None else int(found), reason)
        case Finish(reason=reason) if draft.state.cohorts[cohort_id].unlearning is not None:
            _unlearned(draft, cohort_id, reason)
        case Abort(reason=reason) if draft.state.cohorts[cohort_id].unlearning is not None:
            _stop_unlearning(draft, cohort_id, reason)
        case Finish(reason=reason):
            draft.emit(e.ProgramAdvanced(cohort_id, stored, "finished", None))
            _end(draft, cohort_id, e.CohortEnded(cohort_id, "finished", reason))
        case Abort(reason=reason):
            draft.emit(e.ProgramAdvanced(cohort_id, stored, "failed", None))
            _end(draft, cohort_id, e.CohortEnded(cohort_id, "failed", reason))
        case _:
            assert_never(step)


def _compute(draft: Draft, cohort_id: UUID, step: Compute, stored: dict[str, Any]) -> None:
    cohort = draft.state.cohorts[cohort_id]
    job_id = draft.request(cohort, "kernel", dict(step.params), step.kernel, sorted(set(step.inputs)))
    draft.emit(e.ProgramAdvanced(cohort_id, stored, "computing", job_id))


def _unlearned(draft: Draft, cohort_id: UUID, reason: str) -> None:
    """The recovery follows: the run's own training, to where the cohort was and as long as the request grants."""
    cohort = draft.state.cohorts[cohort_id]
    recovery = _unlearning(cohort).then.begun(cohort.round)
    extra = extra_rounds(recovery, draft.state.runs[cohort.run_id], cohort)
    draft.emit(e.CohortUnlearned(cohort_id, reason, recovery, extra))


def _class_found(draft: Draft, cohort_id: UUID, found: int | None, reason: str) -> None:
    recovery = with_class(draft.state.cohorts[cohort_id], found)
    draft.emit(e.ClassFound(cohort_id, recovery, reason))


def _unlearning(cohort: Cohort) -> Unlearn:
    if cohort.unlearning is None:
        raise InvariantBroken(f"cohort {cohort.id} runs no method of an erasure")
    return cohort.unlearning


def _stop_unlearning(draft: Draft, cohort_id: UUID, reason: str) -> None:
    draft.revoke(draft.open_tasks(cohort_id))
    draft.emit(e.UnlearningStopped(cohort_id, reason))


def _end(draft: Draft, cohort_id: UUID, ended: e.CohortEnded) -> None:
    cohort = draft.state.cohorts[cohort_id]
    if cohort.program == families.NEWCOMER:  # the run goes on without it, and it may join again
        draft.emit(e.CohortRetired(cohort_id, ended.reason))
    else:
        draft.emit(ended)
    # An audit is beside the program: it may have begun when the cohort had recovered, and goes on.
    draft.revoke([task for task in draft.open_tasks(cohort_id) if task.kind != "audit"])
    draft.post(cohort, SettleRun(cohort.run_id))


def _end_emptied(draft: Draft, cohort: Cohort, reason: str) -> None:
    """The last member left. One cohort of many keeps what it has; the others go on."""
    is_only = draft.state.runs[cohort.run_id].spec.topology.kind == "flat"
    _end(draft, cohort.id, e.CohortEnded(cohort.id, "failed" if is_only else "finished", reason))


def _publish(draft: Draft, cohort_id: UUID, step: Publish) -> None:
    cohort = draft.state.cohorts[cohort_id]
    if (step.kind == "forgotten") != (cohort.unlearning is not None):
        program = cohort.active_program
        raise InvariantBroken(f"cohort {cohort_id} publishes a model of the kind {step.kind} in {program}")
    checkpoint = Checkpoint(
        id=draft.new_id(),
        run_id=cohort.run_id,
        cohort_id=cohort.id,
        epoch=cohort.epoch,
        round=step.round,
        kind=step.kind,
        digest=step.digest,
        base_id=_base_of(cohort, step),
        scale=step.scale,
        metrics=dict(step.metrics),
        created_at=draft.now,
        forgets=[str(client_id) for client_id in cohort.unlearning.forgets] if cohort.unlearning is not None else [],
    )
    members = draft.members_by_name(cohort_id) if step.contributions else {}
    contributions = tuple(
        Contribution(
            checkpoint_id=checkpoint.id,
            update_id=c.update_id,
            client_id=members[c.client].client_id,
            position=position,
            weight=c.weight,
            staleness=c.staleness,
            digest=c.digest,
            distance=c.distance,
            factor=c.factor,
        )
        for position, c in enumerate(step.contributions)
    )
    parents = tuple(
        Parent(checkpoint.id, source.checkpoint_id, position, source.weight)
        for position, source in enumerate(step.sources)
    )
    draft.emit(e.CheckpointPublished(checkpoint, contributions, parents, step.residuals))
    if step.left_out:
        draft.emit(e.UpdatesLeftOut(cohort.id, step.round, step.left_out))
    if cohort.residuals is not None and step.residuals not in (None, cohort.residuals):
        draft.request(cohort, "drop-blob", {"digest": cohort.residuals})
    spec = draft.state.runs[cohort.run_id].spec
    newest_dropped = _newest_dropped(spec.retention.updates, step.round)
    if spec.history.updates is not None and contributions:
        draft.request(cohort, "keep-updates", {"up_to_round": newest_dropped})
    elif newest_dropped:
        draft.request(cohort, "collect-updates", {"up_to_round": newest_dropped})


def _newest_dropped(retention: Literal["all", "none"] | int, round: int) -> int:
    """The newest round whose updates need not be stored any more."""
    if retention == "all":
        return 0
    return round if retention == "none" else max(0, round - retention)


def _base_of(cohort: Cohort, step: Publish) -> UUID | None:
    """A forgotten model descends from those that the method published before, and the first from the quarantined
    head: whoever else is in that is still in it."""
    if step.kind == "aggregate":
        return cohort.head_id
    if cohort.unlearning is None:
        return None
    return cohort.head_id or cohort.unlearning.head_id


def _ask(draft: Draft, cohort_id: UUID, ask: AskClients, stored: dict[str, Any]) -> None:
    """Open a round; where a selection policy first has to find out who takes part in it, open it then."""
    first = selection.first_step(draft, draft.state.cohorts[cohort_id], ask)
    if first is None:
        _open(draft, cohort_id, ask, stored)
        return
    draft.emit(e.SelectionAwaited(cohort_id, stored, ask))
    if isinstance(first, Compute):
        _compute(draft, cohort_id, first, stored)
    else:
        _open(draft, cohort_id, first, stored)


def _go_on_selecting(draft: Draft, cohort: Cohort, selecting: Selecting, outcome: Outcome) -> None:
    stored = dict(cohort.program_state or {})
    step = selection.next_step(draft, cohort, selecting, outcome)
    if step is not None:
        _compute(draft, cohort.id, step, stored)
    else:
        _open(draft, cohort.id, selecting.held, stored)


def _open(draft: Draft, cohort_id: UUID, ask: AskClients, stored: dict[str, Any]) -> None:
    cohort = draft.state.cohorts[cohort_id]
    chosen, standby = choose(draft, cohort, ask)
    if ask.close_at_deadline and not chosen and not ask.leavers:
        draft.emit(e.ProgramAdvanced(cohort_id, stored, "asking", None))
        resume(draft, cohort_id, Collected(()))
        return
    if cohort.waits_for_group and ask.kind == "train":
        ask = replace(ask, quorum=min(ask.quorum, len(chosen)))
        if not chosen:
            draft.emit(e.ProgramAdvanced(cohort_id, stored, "asking", None))
            resume(draft, cohort_id, Collected(()))
            return
    if ask.stream is None and not ask.close_at_deadline and len(chosen) < max(1, ask.quorum):
        draft.emit(e.ProgramAdvanced(cohort_id, stored, "failed", None))
        reason = f"round {ask.round} needs {max(1, ask.quorum)} clients and cohort {cohort.name} has {len(chosen)}"
        _end_emptied(draft, cohort, reason)
        return
    due_at = None if ask.deadline_s is None else draft.now + timedelta(seconds=ask.deadline_s)
    round = Round(
        id=draft.new_id(),
        run_id=cohort.run_id,
        cohort_id=cohort.id,
        epoch=cohort.epoch,
        number=ask.round,
        kind=ask.kind,
        status="open",
        model_digest=ask.model,
        quorum=ask.quorum,
        num_selected=len(chosen) + len(standby) + len(ask.leavers),
        opened_at=draft.now,
        due_at=due_at,
        staleness_bound=None if ask.stream is None else ask.stream.staleness_bound,
        num_open=len(chosen) + len(standby) + len(ask.leavers),
        close_at_deadline=ask.close_at_deadline,
    )
    tasks = [
        *(asked(new_task(draft, round, member, i, "ready"), ask) for i, member in enumerate(chosen)),
        *(new_task(draft, round, member, position, "standby") for position, member in enumerate(standby, len(chosen))),
        *leaver_tasks(draft, round, ask, len(chosen)),
    ]
    draft.emit(e.RoundOpened(round, tuple(tasks)))
    draft.emit(e.ProgramAdvanced(cohort_id, stored, "asking", round.id))
    check_round(draft, round.id)


def ask_others(draft: Draft, round: Round) -> None:
    """Nobody who was asked can answer any more: ask members who were not, as many as are missing."""
    cohort = draft.state.cohorts[round.cohort_id]
    taken = {t.client_id for t in draft.state.tasks.values() if t.round_id == round.id}
    taken |= busy_clients(draft, cohort.id, round.kind)
    members, active = draft.members_by_name(cohort.id), draft.active_names(cohort.id)
    idle = [name for name in active if members[name].client_id not in taken]
    num_in_hand = cohort.num_buffered if round.is_stream else round.num_received
    num_missing = max(1, round.quorum - num_in_hand)
    chosen = selection.lottery_for(draft, cohort).draw(idle, num_missing, round.number)
    if chosen:
        tasks = [new_task(draft, round, members[n], i, "ready") for i, n in enumerate(chosen, round.num_selected)]
        draft.emit(e.OthersAsked(round.id, tuple(tasks)))
    elif active:
        _hold_for_quorum(draft, cohort, round, num_in_hand)
    else:
        _end_emptied(draft, cohort, f"cohort {cohort.name} has no clients left")


def check_round(draft: Draft, round_id: UUID) -> None:
    """Notice that a round is complete, or that it can no longer be."""
    round = draft.state.rounds[round_id]
    cohort = draft.state.cohorts[round.cohort_id]
    if cohort.awaiting != round.id or round.status != "open":
        return
    if is_filled(cohort, round):
        draft.emit(e.RoundFilled(round.id))
    elif not has_open_work(draft, round):
        if round.num_failed:
            _hold_for_quorum(draft, cohort, round, cohort.num_buffered if round.is_stream else round.num_received)
        else:
            draft.emit(e.RoundStarved(round.id))


def is_filled(cohort: Cohort, round: Round) -> bool:
    if round.is_stream:
        return cohort.num_buffered >= max(1, min(round.quorum, cohort.num_serving))
    if round.close_at_deadline:
        return round.num_open == 0 or round.waiting_for_quorum
    return round.num_received >= round.quorum and (round.num_open == 0 or round.waiting_for_quorum)


def has_open_work(draft: Draft, round: Round) -> bool:
    """Whether somebody may still answer: for an asynchronous round, any client of the cohort that has such work."""
    if round.is_stream:
        return any(t.kind == round.kind for t in draft.open_tasks(round.cohort_id))
    return round.num_open > 0


def _hold_for_quorum(draft: Draft, cohort: Cohort, round: Round, num_received: int) -> None:
    if cohort.program == families.NEWCOMER:
        fail_cohort(draft, cohort.id, "it could not be profiled; see its failure under tasks, then let it join again")
        return
    reason = (
        f"round {round.number} of cohort {cohort.name}: {num_received} of {round.quorum} needed answers, "
        f"{round.num_failed} tasks failed and none is left; see the failures under tasks, then resume the run"
    )
    draft.post(cohort, PauseRun(cohort.run_id, "quorum", reason))
