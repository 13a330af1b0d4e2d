"""decide(state, envelope) -> Decision. Pure and total: the same slice, message, instant and entropy always give the
same events. `Rejected` is raised for a caller's mistake and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

from coordinator.engine import allocation, joining, programs, runs, stopping, work
from coordinator.engine import events as e
from coordinator.engine import messages as m
from coordinator.engine.draft import Draft
from coordinator.engine.entities import ENDED, Blob, Job, State, TableNotLoaded
from coordinator.engine.erasure import callbacks, completion, fence, filing, review, samples
from services.core.errors import Rejected
from services.core.figures import bounded
from services.core.ids import IdSource
from services.program.contract import Computed

MAX_KERNEL_FAILURES = 3
STORAGE_RETRY_S = 5.0


@dataclass(frozen=True, slots=True)
class Decision:
    state: State
    events: tuple[e.Event, ...]
    reply: Any


def decide(state: State, envelope: m.Envelope) -> Decision:
    message = envelope.message
    draft = Draft(state, envelope.now, IdSource(envelope.now, envelope.entropy))
    try:
        reply = HANDLERS[type(message)](draft, message)
    except TableNotLoaded as error:
        raise TableNotLoaded(error.table, type(message).__name__) from error
    return Decision(draft.state, tuple(draft.events), reply)


def _record_blob(draft: Draft, message: m.RecordBlob) -> Blob:
    if message.client_id is not None:
        work.working_client(draft, message.client_id)
    blob = draft.state.blobs.get(message.blob_id)
    if blob is None or blob.status == "dropping":
        detail = "these bytes were given up while they were being recorded; send them again"
        raise Rejected("upload-offset-mismatch", detail, offset=0)
    if blob.status == "stored":
        return blob
    if blob.origin != "job" and (known := _checked_whose(draft, message, blob)) is not None:
        return known
    facts = message.facts
    stored = replace(
        blob,
        digest=message.digest,
        num_bytes=facts.num_bytes,
        layout_digest=facts.layout_digest,
        updatable_digest=facts.updatable_digest,
        finite=facts.finite,
        status="stored",
    )
    draft.emit(e.BlobRecorded(stored, facts))
    return stored


def _checked_whose(draft: Draft, message: m.RecordBlob, blob: Blob) -> Blob | None:
    """Nothing that an erasure took out comes back by an upload, and an operator's file is nobody's update. What a
    kernel made is here already: a copy of it that nobody could trace back would outlive it."""
    if (message.federation_id, message.digest) in draft.state.superseded:
        detail = "an erasure took these bytes out of use; train from a model that is served"
        raise Rejected("superseded", detail)
    same = [b for b in draft.state.blobs.values() if b.digest == message.digest and b.id != blob.id]
    if blob.origin == "operator" and any(b.origin == "task" for b in same):
        detail = "these are the bytes of a client's update, which may have to be forgotten; upload something else"
        raise Rejected("anothers-bytes", detail)
    return next((b for b in same if b.origin == "job"), None) if blob.origin == "operator" else None


def _start_program(draft: Draft, message: m.StartProgram) -> None:
    cohort = draft.state.cohorts[message.cohort_id]
    if cohort.phase == "starting" and draft.state.runs[cohort.run_id].status not in ENDED:
        programs.start(draft, cohort.id)


def _open_rounds(draft: Draft, message: m.OpenRounds) -> None:
    programs.open_rounds(draft, message.run_id)


def _collect_round(draft: Draft, message: m.CollectRound) -> None:
    round = draft.state.rounds[message.round_id]
    cohort = draft.state.cohorts[round.cohort_id]
    if cohort.awaiting != round.id or round.status != "open" or round.epoch != cohort.epoch:
        return
    if programs.is_filled(cohort, round):
        programs.collect(draft, round)
    elif not programs.has_open_work(draft, round):
        programs.ask_others(draft, round)


def _leased_job(draft: Draft, message: m.JobDone | m.JobFailed) -> Job | None:
    """The job, if the sender still holds it and its cohort still wants the answer."""
    job = draft.state.jobs.get(message.job_id)
    if job is None or job.status != "leased" or job.lease_token != message.lease_token or job.cohort_id is None:
        return None
    cohort = draft.state.cohorts[job.cohort_id]
    if job.epoch != cohort.epoch or cohort.awaiting != job.id:
        draft.emit(e.JobSettled(job.id, "cancelled"))
        return None
    return job


def _job_done(draft: Draft, message: m.JobDone) -> bool:
    job = _leased_job(draft, message)
    if job is None or job.cohort_id is None:
        return False
    if message.blob is not None:
        _record_blob(draft, message.blob)
    digest = message.blob.digest if message.blob is not None else None
    draft.emit(e.JobSettled(job.id, "done", output=digest))
    programs.resume(draft, job.cohort_id, Computed(digest, bounded(message.figures)))
    return True


def _job_failed(draft: Draft, message: m.JobFailed) -> bool:
    job = _leased_job(draft, message)
    if job is None or job.cohort_id is None:
        return False
    cohort = draft.state.cohorts[job.cohort_id]
    if message.storage_full:
        not_before = draft.now + timedelta(seconds=STORAGE_RETRY_S)
        draft.emit(e.JobReturned(job.id, not_before, message.error, counts_as_failure=False))
        reason = f"the blob store is full: {message.error}; free some space and the run goes on by itself"
        draft.post(cohort, m.PauseRun(cohort.run_id, "storage-full", reason))
    elif message.retryable and job.num_failures + 1 < MAX_KERNEL_FAILURES:
        pause = timedelta(seconds=2.0**job.num_failures)
        draft.emit(e.JobReturned(job.id, draft.now + pause, message.error))
    else:
        draft.emit(e.JobSettled(job.id, "failed", message.error))
        programs.fail_cohort(draft, cohort.id, f"kernel {job.kernel} failed: {message.error}")
    return True


HANDLERS: Final[Mapping[type[m.Message[Any]], Callable[[Draft, Any], Any]]] = {
    m.CreateRun: runs.create_run,
    m.PauseRun: runs.pause_run,
    m.ResumeRun: runs.resume_run,
    m.CancelRun: runs.cancel_run,
    m.SettleRun: runs.settle_run,
    m.RecoverRun: runs.recover_run,
    m.StopRun: stopping.stop_run,
    m.JoinRun: joining.join_run,
    m.ChangeAllocation: allocation.change_allocation,
    m.PlaceNewcomer: joining.place_newcomer,
    m.RemoveClient: runs.remove_client,
    m.FileErasure: filing.file_erasure,
    m.ApproveErasure: filing.approve_erasure,
    m.RestoreErasure: filing.restore_erasure,
    m.ExtendErasure: filing.extend_erasure,
    m.DenyErasure: filing.deny_erasure,
    m.CancelErasure: filing.cancel_erasure,
    m.RetryErasure: filing.retry_erasure,
    m.FenceErasure: fence.fence_erasure,
    m.ReviewErasure: review.review_erasure,
    m.CompleteErasure: completion.complete_erasure,
    m.HoldErasure: completion.hold_erasure,
    m.AnnounceErasure: callbacks.announce,
    m.SettleDelivery: callbacks.settle_delivery,
    m.OpenRounds: _open_rounds,
    m.OpenSession: work.open_session,
    m.AcknowledgeExclusions: samples.acknowledge,
    m.ClaimTasks: work.claim_tasks,
    m.RenewLease: work.renew_lease,
    m.SubmitResult: work.submit_result,
    m.FailTask: work.fail_task,
    m.LeaseRanOut: work.lease_ran_out,
    m.DeadlinePassed: work.deadline_passed,
    m.RecordBlob: _record_blob,
    m.StartProgram: _start_program,
    m.RecallRound: programs.recall,
    m.CollectRound: _collect_round,
    m.JobDone: _job_done,
    m.JobFailed: _job_failed,
}
"""Who decides each message. A test says that none is missing, and that each replies what its message promises."""
