"""react(event) -> commands: what an event sets in motion beyond the rows it changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, assert_never
from uuid import UUID

from coordinator.engine import events as e
from coordinator.engine import messages as m
from coordinator.engine.entities import State
from services.wire.v1.erasure import ErasureStatus


@dataclass(frozen=True, slots=True)
class FollowUp:
    """Decide this message next, in the same transaction."""

    message: m.Message[Any]


@dataclass(frozen=True, slots=True)
class Wake:
    """Ring after the commit for whoever waits under this key."""

    key: str


Command = FollowUp | Wake
KERNELS = "jobs:kernel"
CHORES = "jobs:chore"
NOTICES = "jobs:notice"
HISTORY = "jobs:history"
RETENTION = "jobs:retention"
CLOCK = "clock"
EVIDENCE = "evidence"
BELLS: Final = {"kernel": KERNELS, "notify": NOTICES, "keep-updates": HISTORY, "collect-updates": RETENTION}
"""The bells of jobs that have a pump of their own; all others are chores."""


def client_key(client_id: UUID) -> str:
    return f"client:{client_id}"


def run_key(run_id: UUID) -> str:
    return f"run:{run_id}"


def erasure_key(erasure_id: UUID) -> str:
    return f"erasure:{erasure_id}"


def federation_key(federation_id: UUID) -> str:
    return f"federation:{federation_id}"


def react(event: e.Event, after: State) -> Iterator[Command]:
    """What follows the event. What happens most often is asked for first."""
    if isinstance(event, e.TaskEvent):
        return _to_task(event, after)
    if isinstance(event, e.RoundEvent):
        return _to_round(event)
    if isinstance(event, e.CohortEvent):
        return _to_cohort(event)
    if isinstance(event, e.JobEvent):
        return _to_job(event)
    if isinstance(event, e.RunEvent):
        return _to_run(event)
    if isinstance(event, e.UnlearningEvent):
        return _to_unlearning(event)
    if isinstance(event, e.ErasureEvent):
        return _to_erasure(event, after)
    if isinstance(event, e.IncentiveEvent):
        return iter(())
    assert_never(event)


def _to_task(event: e.TaskEvent, after: State) -> Iterator[Command]:
    match event:
        case e.TaskReleased(task_id=task_id) | e.TaskPromoted(task_id=task_id) | e.TaskReissued(task_id=task_id):
            yield Wake(client_key(after.tasks[task_id].client_id))
        case e.TaskLeased() | e.LeaseRenewed() | e.TaskFailed() | e.TaskWithdrawn() | e.TasksRevoked():
            return
        case e.UpdateAccepted() | e.UpdatesDiscarded() | e.UpdateRefused():
            return
        case _:
            assert_never(event)


def _to_round(event: e.RoundEvent) -> Iterator[Command]:
    match event:
        case e.RoundFilled(round_id=round_id) | e.RoundStarved(round_id=round_id):
            yield FollowUp(m.CollectRound(round_id))
        case e.RoundOpened(tasks=tasks) | e.OthersAsked(tasks=tasks):
            yield from (Wake(client_key(task.client_id)) for task in tasks if task.status == "ready")
        case e.QuorumAwaited() | e.RoundClosed() | e.RoundAbandoned():
            return
        case _:
            assert_never(event)


def _to_cohort(event: e.CohortEvent) -> Iterator[Command]:
    match event:
        case e.CohortFormed(cohort=cohort):
            yield FollowUp(m.StartProgram(cohort.id))
        case e.CohortRestarted(cohort_id=cohort_id) | e.CohortRevived(cohort_id=cohort_id):
            yield FollowUp(m.StartProgram(cohort_id))
        case e.CohortWaits():
            yield Wake(CLOCK)
        case e.CheckpointPublished(checkpoint=checkpoint):
            if checkpoint.epoch > 0:  # an erasure may wait for it
                yield Wake(CLOCK)
        case e.MemberJoined() | e.MemberLeft() | e.CohortMoved() | e.CohortAllotted():
            return
        case e.ProgramAdvanced() | e.UpdatesLeftOut() | e.RoundsLimited() | e.CohortEnded() | e.CohortRetired():
            return
        case e.SelectionAwaited() | e.MembersOrdered() | e.SelectionFailed() | e.RoundObserved():
            return
        case _:
            assert_never(event)


def _to_job(event: e.JobEvent) -> Iterator[Command]:
    match event:
        case e.JobRequested(job=job):
            yield Wake(BELLS.get(job.kind, CHORES))
        case e.JobReturned():
            yield Wake(KERNELS)
        case e.JobSettled() | e.BlobRecorded():
            return
        case _:
            assert_never(event)


def _to_run(event: e.RunEvent) -> Iterator[Command]:
    match event:
        case e.RunResumed():
            yield Wake(KERNELS)
        case e.RunCreated() | e.RunPaused() | e.RunEnded() | e.RunReopened() | e.RunResized():
            return
        case e.SessionOpened() | e.ClientRemoved():
            return
        case _:
            assert_never(event)


def _to_unlearning(event: e.UnlearningEvent) -> Iterator[Command]:
    match event:
        case (
            e.CohortFenced(cohort_id=cohort_id)
            | e.RecoveryBegun(cohort_id=cohort_id)
            | e.ClassFound(cohort_id=cohort_id)
        ):
            yield FollowUp(m.StartProgram(cohort_id))
        case e.CohortUnlearned(cohort_id=cohort_id):
            yield FollowUp(m.StartProgram(cohort_id))
            yield Wake(CLOCK)
        case e.RoundRecalled(cohort_id=cohort_id, checkpoint_id=checkpoint_id):
            yield FollowUp(m.RecallRound(cohort_id, checkpoint_id))
        case e.UnlearningStopped():
            yield Wake(CLOCK)
        case e.CheckpointsSuperseded():
            return
        case _:
            assert_never(event)


def _to_erasure(event: e.ErasureEvent, after: State) -> Iterator[Command]:
    match event:
        case e.ErasureFiled(erasure=erasure):
            yield from _announcement(after, erasure.id, erasure.status, erasure.status, None)
        case e.ErasureExtended(erasure_id=erasure_id, extension=extension):
            status = after.erasures[erasure_id].status
            yield from _announcement(after, erasure_id, "extended", status, extension.reason)
        case e.ErasureMoved(erasure_id=erasure_id, status=status, reason=reason):
            yield Wake(CLOCK)
            change = "first_clean" if event.first_clean_at is not None else status
            yield from _announcement(after, erasure_id, change, status, reason)
        case e.ClientReleased(client_id=client_id):
            yield Wake(client_key(client_id))
        case e.SamplesExcluded(exclusion=exclusion):
            yield Wake(client_key(exclusion.client_id))
        case e.ExclusionsAcknowledged(client_id=client_id):
            yield Wake(client_key(client_id))
            yield Wake(CLOCK)
        case e.ErasureDecided() | e.ClientErased() | e.ExclusionsRefused() | e.CertificateIssued():
            return
        case e.AffectedCohortFenced() | e.AffectedCohortClean() | e.AffectedCohortDone() | e.AffectedCohortAudited():
            return
        case e.DeliveryRequested() | e.DeliveryAttempted():
            return
        case _:
            assert_never(event)


def _announcement(
    after: State, erasure_id: UUID, change: str, status: ErasureStatus, reason: str | None
) -> Iterator[Command]:
    if after.erasures[erasure_id].callbacks:
        yield FollowUp(m.AnnounceErasure(erasure_id, change, status, reason))
