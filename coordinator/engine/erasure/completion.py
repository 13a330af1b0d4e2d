"""The end of a request: certified, held for a person, or settled without having been carried out."""

from __future__ import annotations

from coordinator.engine import events as e
from coordinator.engine import messages as m
from coordinator.engine.draft import Draft
from coordinator.engine.entities import SETTLED, Certificate, Erasure
from services.wire.v1.erasure import ErasureStatus


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


def settle(draft: Draft, erasure: Erasure, status: ErasureStatus, reason: str | None) -> None:
    """End a request, and with it its duplicates."""
    draft.emit(e.ErasureMoved(erasure.id, status, reason, completed_at=draft.now))
    for other in sorted(draft.state.erasures.values(), key=lambda o: o.id):
        if other.duplicate_of == erasure.id and other.status not in SETTLED:
            why = f"carried out as {erasure.id}" if status == "completed" else f"{status} with {erasure.id}: {reason}"
            draft.emit(e.ErasureMoved(other.id, status, why, completed_at=draft.now))
