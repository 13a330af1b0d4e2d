"""What the journal keeps of an event: its type, ids, digests and counts. Never a client's data, never a token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, assert_never
from uuid import UUID

from coordinator.engine import events as e
from coordinator.engine.entities import AffectedCohort, Round, State
from coordinator.engine.erasure.stages import Recover
from services.methods.catalogue import PLAIN, RECOVERY


@dataclass(frozen=True, slots=True)
class Entry:
    run_id: UUID | None
    cohort_id: UUID | None
    type: str
    data: dict[str, Any]
    erasure_id: UUID | None = None
    """Set for events of a request; they go to its own log as well."""


ON_THE_WIRE: Final[dict[type[e.Event], str]] = {
    e.AffectedCohortFenced: "LineFenced",
    e.AffectedCohortClean: "LineClean",
    e.AffectedCohortDone: "LineDone",
    e.AffectedCohortAudited: "LineAudited",
}
"""Types of entries that readers of the log know by another name than the event's."""
IN_BOTH: Final = frozenset({"CheckpointsSuperseded", "LineFenced", "LineClean", "LineDone", "LineAudited"})
"""Types of entries that stand in the journal of a run and in the log of a request."""
_OneTask = e.TaskLeased | e.TaskReissued | e.TaskWithdrawn | e.TaskReleased | e.TaskFailed | e.UpdateRefused


def entry(event: e.Event, after: State) -> Entry | None:
    """The journal's line for an event; None for those that only keep the machinery running. What happens most often is
    asked for first."""
    if isinstance(event, e.TaskEvent):
        return _of_task(event, after)
    if isinstance(event, e.RoundEvent):
        return _of_round(event, after)
    if isinstance(event, e.CohortEvent):
        return _of_cohort(event, after)
    if isinstance(event, e.JobEvent):
        return _of_job(event, after)
    if isinstance(event, e.RunEvent):
        return _of_run(event)
    if isinstance(event, e.UnlearningEvent):
        return _of_unlearning(event, after)
    if isinstance(event, e.ErasureEvent):
        return _of_erasure(event, after)
    if isinstance(event, e.IncentiveEvent):
        return None
    assert_never(event)


def _of_task(event: e.TaskEvent, after: State) -> Entry | None:
    match event:
        case e.TaskLeased() | e.TaskReissued() | e.TaskWithdrawn():
            return _about_task(event, after, {})
        case e.TaskReleased(reason=reason) | e.TaskFailed(reason=reason):
            return _about_task(event, after, {"reason": reason})
        case e.UpdateRefused(code=code):
            return _about_task(event, after, {"code": code})
        case e.UpdateAccepted(update=u):
            data = {
                "update_id": str(u.id),
                "client": u.client_name,
                "kind": u.kind,
                "round": after.tasks[u.task_id].round,
                "digest": u.digest,
                "num_samples": u.num_samples,
            }
            return Entry(u.run_id, u.cohort_id, _type(event), data)
        case e.LeaseRenewed() | e.TaskPromoted() | e.TasksRevoked() | e.UpdatesDiscarded():
            return None
    assert_never(event)


def _of_round(event: e.RoundEvent, after: State) -> Entry | None:
    match event:
        case e.RoundOpened(round=r):
            return _about_round(event, r, {"num_selected": r.num_selected, "epoch": r.epoch})
        case (
            e.RoundClosed(round_id=round_id) | e.RoundAbandoned(round_id=round_id) | e.QuorumAwaited(round_id=round_id)
        ):
            r = after.rounds[round_id]
            return _about_round(event, r, {"num_received": r.num_received, "num_failed": r.num_failed})
        case e.OthersAsked(round_id=round_id, tasks=tasks):
            return _about_round(event, after.rounds[round_id], {"num_asked": len(tasks)})
        case e.RoundFilled() | e.RoundStarved():
            return None
    assert_never(event)


def _of_cohort(event: e.CohortEvent, after: State) -> Entry | None:
    match event:
        case e.CohortFormed(cohort=cohort):
            return _about_cohort(event, after, {"cohort": cohort.name, "num_members": cohort.num_members}, cohort.id)
        case e.MemberJoined(member=member):
            return _about_cohort(event, after, {"client_id": str(member.client_id)}, member.cohort_id)
        case e.MemberLeft(cohort_id=cohort_id, client_id=client_id):
            return _about_cohort(event, after, {"client_id": str(client_id)}, cohort_id)
        case e.CheckpointPublished(checkpoint=c, contributions=contributions):
            data: dict[str, Any] = {
                "checkpoint_id": str(c.id),
                "round": c.round,
                "epoch": c.epoch,
                "digest": c.digest,
                "num_updates": len(contributions),
                "metrics": dict(c.metrics),
            }
            return Entry(c.run_id, c.cohort_id, _type(event), data)
        case e.UpdatesLeftOut(cohort_id=cohort_id, round=number, update_ids=update_ids):
            data = {"round": number, "updates": [str(update_id) for update_id in update_ids]}
            return _about_cohort(event, after, data, cohort_id)
        case e.MembersOrdered(cohort_id=cohort_id, round=number, selection=found, figures=figures):
            data = {"round": number, "policy": found.name, "state": found.state, "figures": dict(figures)}
            return _about_cohort(event, after, data, cohort_id)
        case e.SelectionFailed(cohort_id=cohort_id, selection=found):
            return _about_cohort(event, after, {"policy": found.name, "reason": found.failed}, cohort_id)
        case e.CohortEnded(cohort_id=cohort_id, phase=phase, reason=reason):
            return _about_cohort(event, after, {"phase": phase, "reason": reason}, cohort_id)
        case e.CohortRetired(cohort_id=cohort_id, reason=reason):
            return _about_cohort(event, after, {"reason": reason}, cohort_id)
        case e.CohortRevived(cohort_id=cohort_id, epoch=epoch):
            return _about_cohort(event, after, {"epoch": epoch}, cohort_id)
        case e.CohortAllotted(cohort_id=cohort_id, allotment=given):
            data = {} if given is None else {"period": given.period, "job_id": str(given.job_id)}
            data |= {} if given is None else {"num_clients": given.num_clients}
            return _about_cohort(event, after, data, cohort_id)
        case e.ProgramAdvanced() | e.CohortWaits() | e.SelectionAwaited() | e.RoundObserved():
            return None
        case e.RoundsLimited() | e.CohortMoved() | e.CohortRestarted():
            return None
    assert_never(event)


def _of_job(event: e.JobEvent, after: State) -> Entry | None:
    match event:
        case e.JobSettled(job_id=job_id, status="failed", error=error):
            job = after.jobs[job_id]
            return Entry(job.run_id, job.cohort_id, _type(event), {"kernel": job.kernel, "error": error})
        case e.JobSettled() | e.JobRequested() | e.JobReturned() | e.BlobRecorded():
            return None
    assert_never(event)


def _of_run(event: e.RunEvent) -> Entry | None:
    match event:
        case e.RunCreated(run=run):
            return Entry(run.id, None, _type(event), {"name": run.name})
        case e.RunPaused(run_id=run_id, hold=hold, reason=reason):
            return Entry(run_id, None, _type(event), {"hold": hold, "reason": reason})
        case e.RunResumed(run_id=run_id):
            return Entry(run_id, None, _type(event), {})
        case e.RunEnded(run_id=run_id, status=status, reason=reason):
            return Entry(run_id, None, _type(event), {"status": status, "reason": reason})
        case e.RunReopened(run_id=run_id, reason=reason):
            return Entry(run_id, None, _type(event), {"reason": reason})
        case e.SessionOpened() | e.ClientRemoved() | e.RunResized():
            return None
    assert_never(event)


def _of_unlearning(event: e.UnlearningEvent, after: State) -> Entry | None:
    match event:
        case e.CohortFenced(cohort_id=cohort_id, epoch=epoch, round=number, recovery=recovery):
            return _about_cohort(event, after, {"epoch": epoch, "round": number, **_shown(recovery)}, cohort_id)
        case e.CohortUnlearned(cohort_id=cohort_id, reason=reason) | e.ClassFound(cohort_id=cohort_id, reason=reason):
            return _about_cohort(event, after, {"reason": reason, **_shown(event.recovery)}, cohort_id)
        case e.RecoveryBegun(cohort_id=cohort_id, recovery=recovery):
            return _about_cohort(event, after, _shown(recovery), cohort_id)
        case e.UnlearningStopped(cohort_id=cohort_id, reason=reason):
            return _about_cohort(event, after, {"reason": reason}, cohort_id)
        case e.CheckpointsSuperseded(checkpoint_ids=checkpoint_ids, erasure_id=erasure_id):
            run_id = after.checkpoints[checkpoint_ids[0]].run_id
            return Entry(run_id, None, _type(event), {"num_checkpoints": len(checkpoint_ids)}, erasure_id)
        case e.RoundRecalled():
            return None
    assert_never(event)


def _of_erasure(event: e.ErasureEvent, after: State) -> Entry | None:
    match event:
        case e.ErasureFiled(erasure=erasure, subjects=subjects):
            data: dict[str, Any] = {"scope": erasure.scope, "method": erasure.method, "num_subjects": len(subjects)}
            return Entry(None, None, _type(event), data, erasure.id)
        case e.ErasureDecided(erasure_id=erasure_id, ruling=ruling):
            data = {"decision": ruling.outcome, "role": ruling.by.role, "credential_id": str(ruling.by.credential_id)}
            return Entry(None, None, _type(event), data, erasure_id)
        case e.ErasureExtended(erasure_id=erasure_id, extension=extension):
            data = {"until": extension.until.isoformat(), "reason": extension.reason}
            return Entry(None, None, _type(event), data, erasure_id)
        case e.ErasureMoved(erasure_id=erasure_id, status=status, reason=reason, chosen=chosen):
            data = {"status": status, "reason": reason} | ({"method": chosen} if chosen is not None else {})
            return Entry(None, None, _type(event), data, erasure_id)
        case e.SamplesExcluded(exclusion=x):
            data = {"client": x.client_name, "num_samples": len(x.samples)}
            return Entry(None, None, _type(event), data, x.erasure_id)
        case e.CertificateIssued(certificate=certificate):
            return Entry(None, None, _type(event), {}, certificate.erasure_id)
        case e.AffectedCohortFenced(affected=affected):
            return _about_affected(event, affected, {"action": affected.action, "epoch": affected.epoch_after})
        case (
            e.AffectedCohortClean(erasure_id=erasure_id, cohort_id=cohort_id)
            | e.AffectedCohortDone(erasure_id=erasure_id, cohort_id=cohort_id)
        ):
            return _about_affected(event, after.affected_cohorts[erasure_id, cohort_id], {})
        case e.AffectedCohortAudited(erasure_id=erasure_id, cohort_id=cohort_id, audit=audit):
            return _about_affected(event, after.affected_cohorts[erasure_id, cohort_id], {"passed": audit.passed})
        case e.ClientErased() | e.ClientReleased() | e.ExclusionsAcknowledged() | e.ExclusionsRefused():
            return None
        case e.DeliveryRequested() | e.DeliveryAttempted():
            return None
    assert_never(event)


def _type(event: e.Event) -> str:
    return ON_THE_WIRE.get(type(event), type(event).__name__)


def _about_task(event: _OneTask, after: State, data: dict[str, Any]) -> Entry:
    task = after.tasks[event.task_id]
    named = {
        "task_id": str(task.id),
        "client": task.client_name,
        "round": task.round,
        "kind": task.kind,
        "attempt": task.attempt,
    }
    return Entry(task.run_id, task.cohort_id, _type(event), {**named, **data})


def _about_round(event: e.RoundEvent, r: Round, data: dict[str, Any]) -> Entry:
    return Entry(r.run_id, r.cohort_id, _type(event), {"round": r.number, "kind": r.kind, **data})


def _about_cohort(event: e.Event, after: State, data: dict[str, Any], cohort_id: UUID) -> Entry:
    return Entry(after.cohorts[cohort_id].run_id, cohort_id, _type(event), data)


def _about_affected(event: e.ErasureEvent, one: AffectedCohort, data: dict[str, Any]) -> Entry:
    data = {"cohort": one.cohort_name, **data}
    return Entry(one.run_id, one.cohort_id, _type(event), data, one.erasure_id)


def _shown(recovery: Recover | None) -> dict[str, Any]:
    """The recovery method that is asked for, if any is, and its rounds."""
    stage = recovery
    while stage is not None and (stage.method == PLAIN or stage.method not in RECOVERY):
        stage = stage.then
    if stage is None:
        return {}
    return {"recovery": stage.method, "after_round": stage.from_round, "until_round": stage.until_round}
