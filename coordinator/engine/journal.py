"""What the journal keeps of an event: its type, ids, digests and counts. Never a client's data, never a token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, assert_never
from uuid import UUID

from coordinator.engine import events as e
from coordinator.engine.entities import State
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


def entry(event: e.Event, after: State) -> Entry | None:
    """The journal's line for an event; None for those that only keep the machinery running."""
    kind = ON_THE_WIRE.get(type(event), type(event).__name__)
    match event:
        case e.RunCreated(run=run):
            return Entry(run.id, None, kind, {"name": run.name})
        case e.CohortFormed(cohort=cohort):
            return Entry(cohort.run_id, cohort.id, kind, {"cohort": cohort.name, "num_members": cohort.num_members})
        case e.RunPaused(run_id=run_id, hold=hold, reason=reason):
            return Entry(run_id, None, kind, {"hold": hold, "reason": reason})
        case e.RunResumed(run_id=run_id):
            return Entry(run_id, None, kind, {})
        case e.RunEnded(run_id=run_id, status=status, reason=reason):
            return Entry(run_id, None, kind, {"status": status, "reason": reason})
        case e.MemberJoined(member=member):
            cohort_id, client_id = member.cohort_id, str(member.client_id)
            return Entry(after.cohorts[cohort_id].run_id, cohort_id, kind, {"client_id": client_id})
        case e.MemberLeft(cohort_id=cohort_id, client_id=client_id):
            return Entry(after.cohorts[cohort_id].run_id, cohort_id, kind, {"client_id": str(client_id)})
        case e.RoundOpened(round=r):
            data: dict[str, Any] = {"round": r.number, "kind": r.kind, "num_selected": r.num_selected, "epoch": r.epoch}
            return Entry(r.run_id, r.cohort_id, kind, data)
        case (
            e.RoundClosed(round_id=round_id) | e.RoundAbandoned(round_id=round_id) | e.QuorumAwaited(round_id=round_id)
        ):
            r = after.rounds[round_id]
            data = {"round": r.number, "kind": r.kind, "num_received": r.num_received, "num_failed": r.num_failed}
            return Entry(r.run_id, r.cohort_id, kind, data)
        case e.OthersAsked(round_id=round_id, tasks=tasks):
            r = after.rounds[round_id]
            return Entry(r.run_id, r.cohort_id, kind, {"round": r.number, "kind": r.kind, "num_asked": len(tasks)})
        case (
            e.TaskLeased(task_id=task_id)
            | e.TaskReleased(task_id=task_id)
            | e.TaskFailed(task_id=task_id)
            | e.TaskReissued(task_id=task_id)
            | e.TaskWithdrawn(task_id=task_id)
            | e.UpdateRefused(task_id=task_id)
        ):
            task = after.tasks[task_id]
            data = {
                "task_id": str(task.id),
                "client": task.client_name,
                "round": task.round,
                "kind": task.kind,
                "attempt": task.attempt,
            }
            if isinstance(event, e.TaskReleased | e.TaskFailed):
                data["reason"] = event.reason
            if isinstance(event, e.UpdateRefused):
                data["code"] = event.code
            return Entry(task.run_id, task.cohort_id, kind, data)
        case e.UpdateAccepted(update=u):
            data = {
                "update_id": str(u.id),
                "client": u.client_name,
                "kind": u.kind,
                "round": after.tasks[u.task_id].round,
                "digest": u.digest,
                "num_samples": u.num_samples,
            }
            return Entry(u.run_id, u.cohort_id, kind, data)
        case e.CheckpointPublished(checkpoint=c, contributions=contributions):
            data = {
                "checkpoint_id": str(c.id),
                "round": c.round,
                "epoch": c.epoch,
                "digest": c.digest,
                "num_updates": len(contributions),
                "metrics": dict(c.metrics),
            }
            return Entry(c.run_id, c.cohort_id, kind, data)
        case e.UpdatesLeftOut(cohort_id=cohort_id, round=number, update_ids=update_ids):
            data = {"round": number, "updates": [str(update_id) for update_id in update_ids]}
            return Entry(after.cohorts[cohort_id].run_id, cohort_id, kind, data)
        case e.MembersOrdered(cohort_id=cohort_id, round=number, selection=found, figures=figures):
            data = {"round": number, "policy": found.name, "state": found.state, "figures": dict(figures)}
            return Entry(after.cohorts[cohort_id].run_id, cohort_id, kind, data)
        case e.SelectionFailed(cohort_id=cohort_id, selection=found):
            data = {"policy": found.name, "reason": found.failed}
            return Entry(after.cohorts[cohort_id].run_id, cohort_id, kind, data)
        case e.CohortEnded(cohort_id=cohort_id, phase=phase, reason=reason):
            return Entry(after.cohorts[cohort_id].run_id, cohort_id, kind, {"phase": phase, "reason": reason})
        case e.CohortRetired(cohort_id=cohort_id, reason=reason):
            return Entry(after.cohorts[cohort_id].run_id, cohort_id, kind, {"reason": reason})
        case e.CohortAllotted(cohort_id=cohort_id, allotment=allotment):
            data = {} if allotment is None else {"period": allotment.period, "job_id": str(allotment.job_id)}
            data |= {} if allotment is None else {"num_clients": allotment.num_clients}
            return Entry(after.cohorts[cohort_id].run_id, cohort_id, kind, data)
        case e.RunReopened(run_id=run_id, reason=reason):
            return Entry(run_id, None, kind, {"reason": reason})
        case e.CheckpointsSuperseded(checkpoint_ids=checkpoint_ids, erasure_id=erasure_id):
            run_id = after.checkpoints[checkpoint_ids[0]].run_id
            return Entry(run_id, None, kind, {"num_checkpoints": len(checkpoint_ids)}, erasure_id)
        case e.ErasureFiled(erasure=erasure, subjects=subjects):
            data = {"scope": erasure.scope, "method": erasure.method, "num_subjects": len(subjects)}
            return Entry(None, None, kind, data, erasure.id)
        case e.ErasureDecided(erasure_id=erasure_id, ruling=ruling):
            data = {"decision": ruling.outcome, "role": ruling.by.role, "credential_id": str(ruling.by.credential_id)}
            return Entry(None, None, kind, data, erasure_id)
        case e.ErasureExtended(erasure_id=erasure_id, extension=extension):
            data = {"until": extension.until.isoformat(), "reason": extension.reason}
            return Entry(None, None, kind, data, erasure_id)
        case e.ErasureMoved(erasure_id=erasure_id, status=status, reason=reason, chosen=chosen):
            data = {"status": status, "reason": reason} | ({"method": chosen} if chosen is not None else {})
            return Entry(None, None, kind, data, erasure_id)
        case e.SamplesExcluded(exclusion=x):
            return Entry(None, None, kind, {"client": x.client_name, "num_samples": len(x.samples)}, x.erasure_id)
        case e.AffectedCohortFenced(affected=one):
            data = {"cohort": one.cohort_name, "action": one.action, "epoch": one.epoch_after}
            return Entry(one.run_id, one.cohort_id, kind, data, one.erasure_id)
        case (
            e.AffectedCohortClean(erasure_id=erasure_id, cohort_id=cohort_id)
            | e.AffectedCohortDone(erasure_id=erasure_id, cohort_id=cohort_id)
        ):
            one = after.affected_cohorts[erasure_id, cohort_id]
            return Entry(one.run_id, cohort_id, kind, {"cohort": one.cohort_name}, erasure_id)
        case e.AffectedCohortAudited(erasure_id=erasure_id, cohort_id=cohort_id, audit=audit):
            one = after.affected_cohorts[erasure_id, cohort_id]
            data = {"cohort": one.cohort_name, "passed": audit.passed}
            return Entry(one.run_id, cohort_id, kind, data, erasure_id)
        case e.CertificateIssued(certificate=certificate):
            return Entry(None, None, kind, {}, certificate.erasure_id)
        case e.CohortFenced(cohort_id=cohort_id, epoch=epoch, round=number):
            data = {"epoch": epoch, "round": number, **_shown(event.recovery)}
            return Entry(after.cohorts[cohort_id].run_id, cohort_id, kind, data)
        case e.CohortRevived(cohort_id=cohort_id, epoch=epoch):
            return Entry(after.cohorts[cohort_id].run_id, cohort_id, kind, {"epoch": epoch})
        case e.CohortUnlearned(cohort_id=cohort_id, reason=reason) | e.ClassFound(cohort_id=cohort_id, reason=reason):
            data = {"reason": reason, **_shown(event.recovery)}
            return Entry(after.cohorts[cohort_id].run_id, cohort_id, kind, data)
        case e.RecoveryBegun(cohort_id=cohort_id, recovery=recovery):
            return Entry(after.cohorts[cohort_id].run_id, cohort_id, kind, _shown(recovery))
        case e.UnlearningStopped(cohort_id=cohort_id, reason=reason):
            return Entry(after.cohorts[cohort_id].run_id, cohort_id, kind, {"reason": reason})
        case e.JobSettled(job_id=job_id, status="failed", error=error):
            job = after.jobs[job_id]
            return Entry(job.run_id, job.cohort_id, kind, {"kernel": job.kernel, "error": error})
        case (
            e.SessionOpened()
            | e.ClientRemoved()
            | e.RoundFilled()
            | e.RoundStarved()
            | e.LeaseRenewed()
            | e.TaskPromoted()
            | e.TasksRevoked()
            | e.UpdatesDiscarded()
            | e.ProgramAdvanced()
            | e.JobRequested()
            | e.JobReturned()
            | e.BlobRecorded()
            | e.CohortWaits()
            | e.SelectionAwaited()
            | e.RoundObserved()
            | e.RoundsLimited()
            | e.CohortMoved()
            | e.CohortRestarted()
            | e.RoundRecalled()
            | e.RunResized()
            | e.ClientErased()
            | e.ClientReleased()
            | e.ExclusionsAcknowledged()
            | e.ExclusionsRefused()
            | e.DeliveryRequested()
            | e.DeliveryAttempted()
            | e.AllocationChanged()
            | e.PeriodBegun()
            | e.LedgerNoted()
            | e.JobSettled()
        ):
            return None
    assert_never(event)


def _shown(recovery: Recover | None) -> dict[str, Any]:
    """The recovery method that is asked for, if any is, and its rounds."""
    stage = recovery
    while stage is not None and (stage.method == PLAIN or stage.method not in RECOVERY):
        stage = stage.then
    if stage is None:
        return {}
    return {"recovery": stage.method, "after_round": stage.from_round, "until_round": stage.until_round}
