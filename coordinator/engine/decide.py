"""decide(state, envelope) -> Decision. Pure and total: the same slice, message, instant and entropy always give the
same events. `Rejected` is raised for a caller's mistake and changes nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, assert_never
from uuid import UUID

from coordinator.engine import erasures, exclusions, joining, notices, programs, recovery, runs, work
from coordinator.engine import events as e
from coordinator.engine import messages as m
from coordinator.engine.draft import Draft
from coordinator.engine.entities import ENDED, Blob, Job, State
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
    draft = Draft(state, envelope.now, IdSource(envelope.now, envelope.entropy))
    reply = _dispatch(draft, envelope.message)
    return Decision(draft.state, tuple(draft.events), reply)


def _dispatch(draft: Draft, message: m.Message) -> Any:
    match message:
        case m.CreateRun():
            return runs.create_run(draft, message)
        case m.PauseRun():
            return runs.pause_run(draft, message)
        case m.ResumeRun():
            return runs.resume_run(draft, message)
        case m.CancelRun():
            return runs.cancel_run(draft, message)
        case m.SettleRun():
            return runs.settle_run(draft, message)
        case m.JoinRun():
            return joining.join_run(draft, message)
        case m.PlaceNewcomer():
            return joining.place_newcomer(draft, message)
        case m.RemoveClient():
            return runs.remove_client(draft, message)
        case m.FileErasure():
            return erasures.file_erasure(draft, message)
        case m.ApproveErasure():
            return erasures.approve_erasure(draft, message)
        case m.DenyErasure():
            return erasures.deny_erasure(draft, message)
        case m.CancelErasure():
            return erasures.cancel_erasure(draft, message)
        case m.RetryErasure():
            return erasures.retry_erasure(draft, message)
        case m.FenceErasure():
            return erasures.fence_erasure(draft, message)
        case m.ReviewErasure():
            return recovery.review_erasure(draft, message)
        case m.CompleteErasure():
            return erasures.complete_erasure(draft, message)
        case m.HoldErasure():
            return erasures.hold_erasure(draft, message)
        case m.AnnounceErasure():
            return notices.announce(draft, message)
        case m.SettleDelivery():
            return notices.settle_delivery(draft, message)
        case m.OpenRounds(run_id=run_id):
            return programs.open_rounds(draft, run_id)
        case m.OpenSession():
            return work.open_session(draft, message)
        case m.AcknowledgeExclusions():
            return exclusions.acknowledge(draft, message)
        case m.ClaimTasks():
            return work.claim_tasks(draft, message)
        case m.RenewLease():
            return work.renew_lease(draft, message)
        case m.SubmitResult():
            return work.submit_result(draft, message)
        case m.FailTask():
            return work.fail_task(draft, message)
        case m.LeaseRanOut():
            return work.lease_ran_out(draft, message)
        case m.DeadlinePassed():
            return work.deadline_passed(draft, message)
        case m.RecordBlob():
            return _record_blob(draft, message)
        case m.StartProgram(cohort_id=cohort_id):
            return _start_program(draft, cohort_id)
        case m.RecallRound():
            return programs.recall(draft, message)
        case m.CollectRound(round_id=round_id):
            return _collect_round(draft, round_id)
        case m.JobDone():
            return _job_done(draft, message)
        case m.JobFailed():
            return _job_failed(draft, message)
    assert_never(message)


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


def _start_program(draft: Draft, cohort_id: UUID) -> None:
    cohort = draft.state.cohorts[cohort_id]
    if cohort.phase == "starting" and draft.state.runs[cohort.run_id].status not in ENDED:
        programs.start(draft, cohort_id)


def _collect_round(draft: Draft, round_id: UUID) -> None:
    round = draft.state.rounds[round_id]
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
        params = {"message": "PauseRun", "run_id": str(job.run_id), "hold": "storage-full", "reason": reason}
        draft.request(cohort, "post", params)
    elif message.retryable and job.num_failures + 1 < MAX_KERNEL_FAILURES:
        pause = timedelta(seconds=2.0**job.num_failures)
        draft.emit(e.JobReturned(job.id, draft.now + pause, message.error))
    else:
        draft.emit(e.JobSettled(job.id, "failed", message.error))
        programs.fail_cohort(draft, cohort.id, f"kernel {job.kernel} failed: {message.error}")
    return True
