"""evolve(state, event) -> state: what an event changes. Total over the events; decides nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, Literal, assert_never

from coordinator.engine import events as e
from coordinator.engine.entities import SETTLED, Cohort, Entity, NextRound, Round, Selecting, StartFrom, State, Task
from services.program.contract import Source


def evolve(state: State, event: e.Event) -> State:
    """The state after the event. What happens most often is asked for first."""
    if isinstance(event, e.TaskEvent):
        return _of_task(state, event)
    if isinstance(event, e.RoundEvent):
        return _of_round(state, event)
    if isinstance(event, e.CohortEvent):
        return _of_cohort(state, event)
    if isinstance(event, e.JobEvent):
        return _of_job(state, event)
    if isinstance(event, e.RunEvent):
        return _of_run(state, event)
    if isinstance(event, e.UnlearningEvent):
        return _of_unlearning(state, event)
    if isinstance(event, e.ErasureEvent):
        return _of_erasure(state, event)
    if isinstance(event, e.IncentiveEvent):
        return _of_incentives(state, event)
    assert_never(event)


def _of_task(state: State, event: e.TaskEvent) -> State:
    match event:
        case e.TaskLeased(task_id=task_id):
            task = state.tasks[task_id]
            leased = replace(
                task,
                status="leased",
                attempt=task.attempt + 1,
                lease_token=event.lease_token,
                leased_at=event.at,
                due_at=event.until,
                base_round=event.base_round,
                model_digest=event.model_digest,
                progress=0.0,
            )
            return state.put(leased)
        case e.LeaseRenewed(task_id=task_id, until=until, progress=progress):
            return state.put(replace(state.tasks[task_id], status="leased", due_at=until, progress=progress))
        case e.TaskReleased(task_id=task_id):
            task = state.tasks[task_id]
            released = replace(task, status="ready", due_at=event.not_before, failure=event.reason)
            if event.counts_as_failure:
                released = replace(released, num_failures=task.num_failures + 1, lease_token=None)
            if event.log_tail is not None:
                released = replace(released, log_tail=event.log_tail)
            return state.put(released)
        case e.TaskPromoted(task_id=task_id):
            return state.put(replace(state.tasks[task_id], status="ready"))
        case e.TaskReissued(task_id=task_id):
            task = state.tasks[task_id]
            round = state.rounds[task.round_id]
            return state.put(
                replace(task, status="ready", num_failures=0, due_at=None),
                replace(round, num_failed=round.num_failed - 1, num_open=round.num_open + 1),
            )
        case e.TaskFailed(task_id=task_id, reason=reason, log_tail=log_tail):
            task = state.tasks[task_id]
            round = state.rounds[task.round_id]
            failed = replace(
                task,
                status="failed",
                failure=reason,
                log_tail=log_tail,
                due_at=None,
                num_failures=task.num_failures + 1,
            )
            return state.put(failed, _without_open_task(round, num_failed=1))
        case e.TaskWithdrawn(task_id=task_id):
            return _withdraw(state, state.tasks[task_id])
        case e.TasksRevoked(task_ids=task_ids):
            return state.put_all(_revoked(state.tasks[task_id]) for task_id in task_ids)
        case e.UpdateAccepted():
            return _accept(state, event)
        case e.UpdatesDiscarded(update_ids=update_ids):
            return state.put_all(replace(state.updates[update_id], status="discarded") for update_id in update_ids)
        case e.UpdateRefused(round_id=round_id):
            round = state.rounds[round_id]
            return state.put(replace(round, num_late=round.num_late + 1))
    assert_never(event)


def _of_round(state: State, event: e.RoundEvent) -> State:
    match event:
        case e.RoundOpened(round=round, tasks=tasks):
            cohort = state.cohorts[round.cohort_id]
            stream_round_id = round.id if round.is_stream else cohort.stream_round_id
            return state.put(round, *tasks, replace(cohort, stream_round_id=stream_round_id))
        case e.QuorumAwaited(round_id=round_id):
            return state.put(replace(state.rounds[round_id], waiting_for_quorum=True, due_at=None))
        case e.RoundFilled() | e.RoundStarved():
            return state
        case e.OthersAsked(round_id=round_id, tasks=tasks):
            round, num = state.rounds[round_id], len(tasks)
            return state.put(
                replace(round, num_selected=round.num_selected + num, num_open=round.num_open + num), *tasks
            )
        case e.RoundClosed():
            return _close_round(state, event)
        case e.RoundAbandoned(round_id=round_id, at=at):
            return state.put(replace(state.rounds[round_id], status="abandoned", closed_at=at, due_at=None))
    assert_never(event)


def _of_cohort(state: State, event: e.CohortEvent) -> State:
    match event:
        case e.CohortFormed(cohort=cohort, members=members):
            num_clients = state.runs[cohort.run_id].num_clients
            return state.put(replace(cohort, num_clients_of_run=num_clients), *members)
        case e.MemberJoined(member=member):
            return state.put(member, _resized(state, state.cohorts[member.cohort_id], 1, serves=member.allotted))
        case e.MemberLeft(cohort_id=cohort_id, client_id=client_id):
            member = state.members[cohort_id, client_id]
            cohort = _resized(state, state.cohorts[cohort_id], -1, serves=member.allotted)
            return state.put(replace(member, active=False), cohort)
        case e.ProgramAdvanced(cohort_id=cohort_id):
            cohort = state.cohorts[cohort_id]
            return state.put(replace(cohort, program_state=event.state, phase=event.phase, awaiting=event.awaiting))
        case e.CheckpointPublished(checkpoint=checkpoint, contributions=contributions, parents=parents):
            cohort = state.cohorts[checkpoint.cohort_id]
            moved = replace(cohort, head_id=checkpoint.id, head_digest=checkpoint.digest, round=checkpoint.round)
            moved = replace(moved, residuals=event.residuals or cohort.residuals)
            return state.put(checkpoint, replace(moved, pending=None), *contributions, *parents)
        case e.CohortEnded(cohort_id=cohort_id, phase=phase, reason=reason):
            cohort = state.cohorts[cohort_id]
            return state.put(replace(cohort, phase=phase, reason=reason, awaiting=None))
        case e.RoundsLimited(cohort_id=cohort_id, last_round=last_round):
            cohort = state.cohorts[cohort_id]
            return state.put(replace(cohort, extra_rounds=last_round - state.runs[cohort.run_id].spec.stop.rounds))
        case e.UpdatesLeftOut():
            return state
        case e.CohortRestarted(cohort_id=cohort_id, sources=sources, round=number):
            cohort = state.cohorts[cohort_id]
            return state.put(replace(cohort, round=number, **_fresh_program(sources)))
        case e.CohortRevived(cohort_id=cohort_id, epoch=epoch):
            cohort = state.cohorts[cohort_id]
            # A method that was at work has nothing to read any more: such a cohort is trained from its beginning.
            revived = replace(cohort, epoch=epoch, reason=None, unlearning=None, **_fresh_program(cohort.sources))
            return state.put(revived)
        case e.CohortWaits(cohort_id=cohort_id, ask=ask):
            cohort = state.cohorts[cohort_id]
            return state.put(
                replace(cohort, program_state=event.state, phase="waiting", awaiting=None, pending=NextRound(ask))
            )
        case e.SelectionAwaited(cohort_id=cohort_id, ask=ask):
            cohort = state.cohorts[cohort_id]
            return state.put(replace(cohort, program_state=event.state, pending=Selecting(ask)))
        case e.MembersOrdered(cohort_id=cohort_id) | e.SelectionFailed(cohort_id=cohort_id):
            return state.put(replace(state.cohorts[cohort_id], selection=event.selection, pending=None))
        case e.RoundObserved(cohort_id=cohort_id, observed=observed):
            cohort = state.cohorts[cohort_id]
            assert cohort.selection is not None
            return state.put(replace(cohort, selection=replace(cohort.selection, observed=observed)))
        case e.CohortRetired(cohort_id=cohort_id, reason=reason):
            cohort = state.cohorts[cohort_id]
            retired = replace(cohort, phase="retired", reason=reason, awaiting=None, pending=None)
            return state.put(replace(retired, head_id=None, head_digest=None))
        case e.CohortMoved(cohort_id=cohort_id, parent_id=parent_id):
            return state.put(replace(state.cohorts[cohort_id], parent_id=parent_id))
        case e.CohortAllotted():
            return _allot(state, event)
    assert_never(event)


def _of_job(state: State, event: e.JobEvent) -> State:
    match event:
        case e.JobRequested(job=job):
            return state.put(job)
        case e.JobSettled(job_id=job_id, status=status, error=error, output=output):
            return state.put(replace(state.jobs[job_id], status=status, error=error, output=output, due_at=None))
        case e.JobReturned(job_id=job_id, not_before=not_before, error=error):
            job = state.jobs[job_id]
            num_failures = job.num_failures + event.counts_as_failure
            return state.put(replace(job, status="ready", due_at=not_before, error=error, num_failures=num_failures))
        case e.BlobRecorded(blob=blob, facts=facts):
            assert blob.digest is not None
            return state.put(blob).with_rows({"facts": {(blob.federation_id, blob.digest): facts}})
    assert_never(event)


def _of_run(state: State, event: e.RunEvent) -> State:
    match event:
        case e.RunCreated(run=run):
            return state.put(run)
        case e.RunPaused(run_id=run_id, hold=hold, reason=reason):
            run = state.runs[run_id]
            return state.put(replace(run, status="paused", hold=hold, reason=reason, version=run.version + 1))
        case e.RunResumed(run_id=run_id):
            run = state.runs[run_id]
            return state.put(replace(run, status="running", hold=None, reason=None, version=run.version + 1))
        case e.RunEnded(run_id=run_id, status=status, reason=reason, at=at):
            run = state.runs[run_id]
            ended = replace(run, status=status, hold=None, reason=reason, ended_at=at, version=run.version + 1)
            return state.put(ended)
        case e.SessionOpened(client_id=client_id, at=at, agent_version=version, devices=devices):
            client = replace(state.clients[client_id], last_seen_at=at, agent_version=version, devices=devices)
            client = replace(client, canary=event.canary or client.canary)
            # Another machine may have another ledger and another cache.
            return state.put(replace(client, exclusions_acked=None, dropped_at=None))
        case e.ClientRemoved(client_id=client_id):
            return state.put(replace(state.clients[client_id], status="removed"))
        case e.RunReopened(run_id=run_id, reason=reason):
            run = state.runs[run_id]
            reopened = replace(run, status="running", reason=reason, ended_at=None, version=run.version + 1)
            return state.put(reopened)
        case e.RunResized(run_id=run_id, num_clients=num_clients):
            return state.put(replace(state.runs[run_id], num_clients=num_clients))
    assert_never(event)


def _of_unlearning(state: State, event: e.UnlearningEvent) -> State:
    match event:
        case e.CohortFenced(cohort_id=cohort_id):
            cohort = state.cohorts[cohort_id]
            fenced = replace(
                cohort,
                epoch=event.epoch,
                head_id=event.head_id,
                head_digest=event.head_digest,
                round=event.round,
                extra_rounds=cohort.extra_rounds + event.extra_rounds,
                recovery=event.recovery,
                unlearning=event.unlearning,
                residuals=None,
                selection=None,
                **_fresh_program(event.sources),
            )
            return state.put(fenced)
        case e.RoundRecalled():
            return state
        case e.CohortUnlearned():
            return _unlearned(state, event)
        case e.RecoveryBegun(cohort_id=cohort_id, recovery=recovery):
            cohort = state.cohorts[cohort_id]
            begun = replace(cohort, recovery=recovery, extra_rounds=cohort.extra_rounds + event.extra_rounds)
            return state.put(replace(begun, **_fresh_program(())) if cohort.phase == "finished" else begun)
        case e.ClassFound(cohort_id=cohort_id, recovery=recovery):
            found = replace(state.cohorts[cohort_id], recovery=recovery, phase="starting")
            return state.put(replace(found, awaiting=None, program_state=None))  # a stream goes on meanwhile
        case e.UnlearningStopped(cohort_id=cohort_id, reason=reason):
            cohort = state.cohorts[cohort_id]
            assert cohort.unlearning is not None
            stopped = replace(cohort.unlearning, stopped=reason)
            return state.put(replace(cohort, unlearning=stopped, phase="waiting", awaiting=None, program_state=None))
        case e.CheckpointsSuperseded(checkpoint_ids=checkpoint_ids, erasure_id=erasure_id):
            return state.put_all(replace(state.checkpoints[c], superseded_by=erasure_id) for c in checkpoint_ids)
    assert_never(event)


def _of_erasure(state: State, event: e.ErasureEvent) -> State:
    match event:
        case e.ErasureFiled(erasure=erasure, subjects=subjects):
            return state.put(erasure, *subjects)
        case e.ErasureDecided(erasure_id=erasure_id, ruling=ruling):
            return state.put(replace(state.erasures[erasure_id], ruling=ruling))
        case e.ErasureExtended(erasure_id=erasure_id, extension=extension):
            known = state.erasures[erasure_id]
            return state.put(replace(known, legal_deadline=extension.until, extension=extension))
        case e.ErasureMoved():
            return _move_erasure(state, event)
        case e.ClientErased(client_id=client_id, erasure_id=erasure_id, is_needed=is_needed):
            needed_by = erasure_id if is_needed else None
            return state.put(replace(state.clients[client_id], status="erased", needed_by=needed_by))
        case e.ClientReleased(client_id=client_id):
            return state.put(replace(state.clients[client_id], needed_by=None))
        case e.SamplesExcluded(exclusion=exclusion, digest=digest):
            return state.put(exclusion, replace(state.clients[exclusion.client_id], exclusions=digest))
        case e.ExclusionsAcknowledged():
            return _acknowledge(state, event)
        case e.ExclusionsRefused(client_id=client_id, problem=problem):
            own = [x for x in state.exclusions.values() if x.client_id == client_id and x.acked_at is None]
            return state.put_all(replace(exclusion, problem=problem) for exclusion in own)
        case e.AffectedCohortFenced(affected=affected):
            return state.put(affected)
        case e.AffectedCohortClean(erasure_id=erasure_id, cohort_id=cohort_id, at=at):
            return state.put(replace(state.affected_cohorts[erasure_id, cohort_id], clean_at=at))
        case e.AffectedCohortDone(erasure_id=erasure_id, cohort_id=cohort_id, at=at):
            return state.put(replace(state.affected_cohorts[erasure_id, cohort_id], done_at=at))
        case e.AffectedCohortAudited(erasure_id=erasure_id, cohort_id=cohort_id, audit=audit):
            return state.put(replace(state.affected_cohorts[erasure_id, cohort_id], audit=audit))
        case e.CertificateIssued(certificate=certificate):
            return state.put(certificate)
        case e.DeliveryRequested(delivery=delivery):
            return state.put(delivery)
        case e.DeliveryAttempted():
            return _attempt_delivery(state, event)
    assert_never(event)


def _of_incentives(state: State, event: e.IncentiveEvent) -> State:
    match event:
        case e.AllocationChanged(federation=federation):
            return state.put(federation)
        case e.PeriodBegun(period=period):
            return state.put(period)
        case e.LedgerNoted(entries=entries):
            return state.put_all(entries)
    assert_never(event)


def _resized(state: State, cohort: Cohort, change: int, *, serves: bool) -> Cohort:
    num_clients = state.runs[cohort.run_id].num_clients
    if serves and cohort.allotment is not None:
        num_serving = cohort.allotment.num_clients + change
        cohort = replace(cohort, allotment=replace(cohort.allotment, num_clients=num_serving))
    return replace(cohort, num_members=cohort.num_members + change, num_clients_of_run=num_clients)


def _allot(state: State, event: e.CohortAllotted) -> State:
    own = [m for m in state.members.values() if m.cohort_id == event.cohort_id and m.active]
    changed = [m for m in own if m.allotted == (m.client_id in event.left_out)]
    flipped = [replace(m, allotted=not m.allotted) for m in changed]
    return state.put(replace(state.cohorts[event.cohort_id], allotment=event.allotment), *flipped)


def _fresh_program(sources: tuple[Source, ...]) -> dict[str, Any]:
    return {
        "phase": "starting",
        "awaiting": None,
        "stream_round_id": None,
        "num_buffered": 0,
        "program_state": None,
        "pending": StartFrom(sources) if sources else None,
    }


def _unlearned(state: State, event: e.CohortUnlearned) -> State:
    cohort = state.cohorts[event.cohort_id]
    affected = [x for x in state.affected_cohorts.values() if x.cohort_id == cohort.id]
    current = [x for x in affected if x.epoch_after == cohort.epoch]
    mended = replace(cohort, unlearning=None, recovery=event.recovery)
    mended = replace(mended, extra_rounds=cohort.extra_rounds + event.extra_rounds, **_fresh_program(()))
    return state.put(mended, *(replace(one, target_round=event.recovery.until_round) for one in current))


_SET_BY_A_MOVE: Final = ("fenced_at", "first_clean_at", "completed_at", "chosen", "duplicate_of")


def _move_erasure(state: State, event: e.ErasureMoved) -> State:
    erasure = state.erasures[event.erasure_id]
    moved = replace(erasure, status=event.status, reason=event.reason, is_held=event.is_held)
    moved = replace(moved, version=erasure.version + 1)
    said = {name: getattr(event, name) for name in _SET_BY_A_MOVE}
    moved = replace(moved, **{name: value for name, value in said.items() if value is not None})
    changed: list[Entity] = [moved]
    if event.status in SETTLED:  # what the salt was for lies in the opening beside the certificate
        changed[0] = replace(moved, salt="")
        changed += [replace(s, active=False) for s in state.subjects.values() if s.erasure_id == erasure.id]
    return state.put(*changed)


def _attempt_delivery(state: State, event: e.DeliveryAttempted) -> State:
    delivery = state.deliveries[event.delivery_id]
    attempted = replace(delivery, attempts=delivery.attempts + 1, error=event.error)
    if event.error is None:
        return state.put(replace(attempted, status="delivered", delivered_at=event.at, next_attempt_at=None))
    status: Literal["pending", "failed"] = "pending" if event.next_attempt_at is not None else "failed"
    return state.put(replace(attempted, status=status, next_attempt_at=event.next_attempt_at))


def _acknowledge(state: State, event: e.ExclusionsAcknowledged) -> State:
    client = state.clients[event.client_id]
    changed: list[Entity] = [replace(client, exclusions_acked=client.exclusions)]
    for exclusion in state.exclusions.values():
        if exclusion.client_id == client.id and exclusion.acked_at is None:
            unknown = event.unknown.get(exclusion.erasure_id, [])
            changed.append(replace(exclusion, acked_at=event.at, unknown=unknown, problem=None))
    return state.put(*changed)


def _accept(state: State, event: e.UpdateAccepted) -> State:
    update = event.update
    task = state.tasks[update.task_id]
    round = state.rounds[task.round_id]
    changed: list[Entity] = [update, replace(task, status="done", result_digest=update.digest, due_at=None)]
    if round.is_stream:
        cohort = state.cohorts[update.cohort_id]
        changed += [replace(cohort, num_buffered=cohort.num_buffered + 1), _without_open_task(round)]
    else:
        changed.append(_without_open_task(round, num_received=1))
    return state.put(*changed)


def _withdraw(state: State, task: Task) -> State:
    """A round that still takes answers no longer counts on this one."""
    round = state.rounds[task.round_id]
    if task.status == "failed":
        round = replace(round, num_failed=round.num_failed - 1)
    else:
        round = replace(round, num_open=round.num_open - 1)
    if round.status == "open":
        num_selected = round.num_selected - 1
        round = replace(round, num_selected=num_selected, quorum=max(1, min(round.quorum, num_selected)))
    return state.put(_revoked(task), round)


def _close_round(state: State, event: e.RoundClosed) -> State:
    round = state.rounds[event.round_id]
    consumed: list[Entity] = [
        replace(state.updates[update_id], status="consumed", consumed_by=round.id) for update_id in event.update_ids
    ]
    closed = replace(round, status="closed", closed_at=event.at, due_at=None)
    if round.is_stream:
        cohort = state.cohorts[round.cohort_id]
        closed = replace(closed, num_received=len(consumed))
        consumed.append(replace(cohort, num_buffered=cohort.num_buffered - len(event.update_ids)))
    return state.put(closed, *consumed)


def _without_open_task(round: Round, num_received: int = 0, num_failed: int = 0) -> Round:
    return replace(
        round,
        num_open=round.num_open - 1,
        num_received=round.num_received + num_received,
        num_failed=round.num_failed + num_failed,
    )


def _revoked(task: Task) -> Task:
    return replace(task, status="revoked", due_at=None)
