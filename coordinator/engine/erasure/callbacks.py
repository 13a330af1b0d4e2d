"""Changes of requests to forget are announced to callbacks, each at least once, within a bounded number of attempts."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from coordinator.engine import events as e
from coordinator.engine import messages as m
from coordinator.engine.draft import Draft
from coordinator.engine.entities import Delivery, Erasure

PAUSES_S: Final = (5, 30, 300, 1800, 7200, 18000, 36000, 86400)
"""The pause before each further attempt: some two days in all. There is no attempt after the last one."""


def announce(draft: Draft, message: m.AnnounceErasure) -> None:
    erasure = draft.state.erasures[message.erasure_id]
    seq = 1 + max((d.seq for d in draft.state.deliveries.values() if d.erasure_id == erasure.id), default=0)
    for index, callback in enumerate(erasure.callbacks):
        delivery = Delivery(
            id=draft.new_id(),
            erasure_id=erasure.id,
            seq=seq,
            callback=index,
            url=callback["url"],
            type=f"erasure.{message.change}",
            payload=_payload(draft, erasure, message, seq),
            created_at=draft.now,
            next_attempt_at=draft.now,
        )
        draft.emit(e.DeliveryRequested(delivery))
        draft.request(erasure, "notify", {"delivery_id": str(delivery.id)})


def settle_delivery(draft: Draft, message: m.SettleDelivery) -> None:
    delivery = draft.state.deliveries[message.delivery_id]
    if delivery.status != "pending":
        return
    has_attempts_left = delivery.attempts < len(PAUSES_S) and not message.is_final
    if message.error is None or not has_attempts_left:
        draft.emit(e.DeliveryAttempted(delivery.id, draft.now, message.error, None))
        draft.emit(e.JobSettled(message.job_id, "done", message.error))
        return
    again_at = draft.now + timedelta(seconds=PAUSES_S[delivery.attempts])
    draft.emit(e.DeliveryAttempted(delivery.id, draft.now, message.error, again_at))
    draft.emit(e.JobReturned(message.job_id, again_at, message.error))


def _payload(draft: Draft, erasure: Erasure, message: m.AnnounceErasure, seq: int) -> dict[str, Any]:
    """The payload is thin and names no client: whoever may know more asks the coordinator."""
    return {
        "type": f"erasure.{message.change}",
        "timestamp": draft.now.isoformat(),
        "data": {
            "erasure_id": str(erasure.id),
            "federation_id": str(erasure.federation_id),
            "seq": seq,
            "status": message.status,
            "reason": message.reason,
        },
    }
