"""Who may move a request to forget from one status to another: a table. A test compares it with the code, and with
every move that the property machine sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from coordinator.engine import messages as m
from coordinator.engine.entities import SETTLED
from services.wire.v1.erasure import ErasureStatus


@dataclass(frozen=True, slots=True)
class Move:
    sources: tuple[ErasureStatus | None, ...]
    """None: the request did not exist."""
    to: ErasureStatus
    messages: tuple[type[Any], ...]
    """What the engine was told."""
    by: str
    """The function of this package that decides it."""


_BEGINNING: Final = (m.FileErasure, m.ApproveErasure, m.RestoreErasure, m.RetryErasure)
_CUTTING: Final = (m.FenceErasure, m.ReviewErasure, m.RetryErasure)
_UNFENCED: Final = ("awaiting_approval", "received", "requires_action")
_OPEN: Final = ("awaiting_approval", "received", "fenced", "executing", "verifying", "requires_action")

MOVES: Final = (
    Move((None,), "awaiting_approval", (m.FileErasure,), "filing.file_erasure"),
    Move((None,), "received", (m.FileErasure,), "filing.file_erasure"),
    # A person decides.
    Move(("awaiting_approval",), "received", (m.ApproveErasure,), "filing.approve_erasure"),
    Move(("awaiting_approval",), "received", (m.RestoreErasure,), "filing.restore_erasure"),
    Move(("awaiting_approval",), "denied", (m.DenyErasure,), "filing.deny_erasure"),
    Move(("awaiting_approval",), "cancelled", (m.CancelErasure,), "filing.cancel_erasure"),
    Move(("requires_action",), "received", (m.RetryErasure,), "filing.retry_erasure"),
    Move(("requires_action",), "executing", (m.RetryErasure,), "filing.retry_erasure"),
    # Samples are fenced once their worker has confirmed that it has them.
    Move(("received",), "received", _BEGINNING, "filing.begin"),
    Move(("received", "requires_action"), "received", (m.ReviewErasure,), "review._review_unfenced"),
    Move(("received", "requires_action"), "requires_action", (m.ReviewErasure,), "review._review_unfenced"),
    Move(("received", "requires_action"), "failed", (m.ReviewErasure,), "review._review_unfenced"),
    # The fence, and what follows it.
    Move(("received", "requires_action"), "fenced", (m.FenceErasure,), "fence.fence_erasure"),
    Move(_UNFENCED, "received", (m.FenceErasure,), "fence._take_over_samples"),
    Move(_UNFENCED, "failed", (m.FenceErasure,), "fence._take_over_samples"),
    Move(("fenced", "executing", "requires_action"), "executing", (m.ReviewErasure,), "review.review_erasure"),
    Move(("fenced", "executing", "requires_action"), "requires_action", (m.ReviewErasure,), "review.review_erasure"),
    Move(("fenced", "executing", "requires_action"), "failed", (m.ReviewErasure,), "review.review_erasure"),
    Move(("executing",), "requires_action", (m.ReviewErasure,), "review._is_audited"),
    Move(("executing",), "verifying", (m.ReviewErasure,), "review.review_erasure"),
    Move(("verifying", "requires_action"), "executing", _CUTTING, "cutting.plan_others_again"),
    # The end.
    Move(("received", "verifying", "requires_action"), "requires_action", (m.HoldErasure,), "completion.hold_erasure"),
    Move(("verifying", "requires_action"), "completed", (m.CompleteErasure,), "completion.complete_erasure"),
    Move(_OPEN, "cancelled", (m.FileErasure,), "filing._withdraw_others"),
)
"""A duplicate of another request waits as `received`, and ends with the other, in the same status."""


def is_allowed(source: ErasureStatus | None, to: ErasureStatus, message: type[Any], *, is_duplicate: bool) -> bool:
    """Whether the table has such a move, or the other request's end if this one is its duplicate."""
    said = [move for move in MOVES if move.to == to and message in move.messages]
    if is_duplicate and source is not None:
        return source == "received" and to in SETTLED and bool(said)
    return any(source in move.sources for move in said)
