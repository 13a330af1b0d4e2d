"""What agents do: open a session, claim tasks by long poll, heartbeat, submit, report failures."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Final
from uuid import UUID

from fastapi import APIRouter, Header, Request, Response

from coordinator.api.auth import Caller, Worker
from coordinator.api.bodies import JsonRoute, answer
from coordinator.api.problems import problems
from coordinator.engine.messages import FailTask, OpenSession, RenewLease, SubmitResult
from coordinator.engine.react import client_key
from coordinator.engine.replies import Accepted, Granted
from coordinator.runtime.task_claims import HEARTBEAT_EVERY_S, grant_of
from services.core.errors import Rejected
from services.wire.v1.superseded_models import SUPERSEDED_HEADER
from services.wire.v1.work import (
    PROTOCOL,
    Claim,
    Failure,
    FailureReply,
    Heartbeat,
    HeartbeatReply,
    Session,
    SessionRequest,
    Submission,
    SubmissionReply,
)

router = APIRouter(prefix="/v1", tags=["work"], route_class=JsonRoute)

_WAIT = re.compile(r"(?:^|[,;\s])wait\s*=\s*\"?(\d{1,6}(?:\.\d{1,3})?)", re.IGNORECASE)
_DROPPED: Final = ("lease-lost", "epoch-fenced", "round-closed")
_ALWAYS: Final = ("unauthenticated", "forbidden", "client-removed", "client-erased")
SUBMITTING: Final = (
    *_DROPPED,
    "not-found",
    "too-stale",
    "already-submitted",
    "blob-missing",
    "wrong-layout",
    "not-finite",
    "out-of-bounds",
    "invalid-result",
)
"""What may be wrong with a result."""


@router.post(
    "/sessions",
    response_model=Session,
    responses=problems(*_ALWAYS, "protocol-too-old", "too-large", "unsupported-media-type"),
)
async def open_session(body: SessionRequest, caller: Worker) -> Response:
    """Say that an agent starts. Tasks that an earlier life of it holds are handed out again."""
    if body.protocol < PROTOCOL:
        raise Rejected("protocol-too-old", f"this coordinator speaks protocol {PROTOCOL}; upgrade the agent")
    coordinator = caller.coordinator
    devices = [device.model_dump() for device in body.devices]
    canary = body.canary.model_dump(mode="json") if body.canary is not None else None
    message = OpenSession(caller.client_id, body.agent_version, devices, canary)
    client = await coordinator.task_claims.open_session(message)
    await coordinator.presence.hear(client.id)
    return answer(
        Session(
            client_id=client.id,
            client_name=client.name,
            federation_id=client.federation_id,
            heartbeat_every_s=HEARTBEAT_EVERY_S,
            max_wait_s=coordinator.settings.max_wait_s,
            max_blob_bytes=coordinator.settings.max_blob_bytes,
        ),
        headers=_superseded(client.superseded_at),
    )


@router.post(
    "/tasks/claim",
    response_model=Claim,
    responses={204: {"description": "No work within the wait."}, **problems(*_ALWAYS, "ledger-behind")},
)
async def claim_tasks(
    request: Request,
    caller: Worker,
    prefer: Annotated[str | None, Header(max_length=200, examples=["wait=25"])] = None,
) -> Response:
    """Take every task that is ready for this client; with `Prefer: wait=<seconds>`, wait for one."""
    coordinator = caller.coordinator
    wait_s = min(_asked_wait_s(prefer), coordinator.settings.max_wait_s)
    await coordinator.presence.hear(caller.client_id)
    granted = await _poll(
        request, caller, min(wait_s, _longest_wait_s(coordinator.settings.max_wait_s, caller.client_id))
    )
    headers = _superseded(caller.principal.superseded_at)
    if prefer is not None:
        headers["Preference-Applied"] = f"wait={wait_s:g}"
    if not granted:
        return Response(status_code=204, headers=headers)
    return answer(Claim.model_construct(tasks=[grant_of(one) for one in granted]), headers=headers)


@router.post(
    "/tasks/{task_id}/heartbeat",
    response_model=HeartbeatReply,
    responses=problems(*_ALWAYS, *_DROPPED, "not-found", "too-large", "unsupported-media-type"),
)
async def renew_lease(task_id: UUID, body: Heartbeat, caller: Worker) -> Response:
    """Keep the task; the answer says whether the work is still wanted."""
    coordinator = caller.coordinator
    await coordinator.presence.hear(caller.client_id)
    message = RenewLease(task_id, caller.client_id, body.lease_token, body.progress)
    renewed = await coordinator.shell.handle(message)
    reply = HeartbeatReply(lease_expires_at=renewed.until, directive="continue")
    return answer(reply, headers=_superseded(caller.principal.superseded_at))


@router.put(
    "/tasks/{task_id}/result",
    response_model=SubmissionReply,
    responses=problems(*_ALWAYS, *SUBMITTING, "too-large", "unsupported-media-type"),
)
async def submit_result(task_id: UUID, body: Submission, caller: Worker) -> Response:
    """Hand in a result whose update is uploaded already. The same submission again gets the same answer."""
    return answer(accepted_reply(await caller.shell.handle(submission_of(caller, task_id, body))))


def submission_of(caller: Caller, task_id: UUID, body: Submission) -> SubmitResult:
    return SubmitResult(task_id, caller.client_id, body.lease_token, body.update, body.num_samples, body.metrics)


def accepted_reply(accepted: Accepted) -> SubmissionReply:
    return SubmissionReply(status="accepted", update_id=accepted.update_id)


@router.post(
    "/tasks/{task_id}/failure",
    response_model=FailureReply,
    responses=problems(*_ALWAYS, *_DROPPED, "not-found", "too-large", "unsupported-media-type"),
)
async def report_failure(task_id: UUID, body: Failure, caller: Worker) -> Response:
    """Give a task back. A retryable failure is handed out again until the run's `max_attempts`."""
    message = FailTask(
        task_id, caller.client_id, body.lease_token, body.retryable, body.reason, body.log_tail, body.handed_back
    )
    noted = await caller.shell.handle(message)
    return answer(FailureReply(status="will-retry" if noted.will_retry else "given-up"))


# --- the long poll ----------------------------------------------------------------------------------------------------


async def _poll(request: Request, caller: Caller, wait_s: float) -> Sequence[Granted]:
    """Claim as soon as there is something to claim. An idle poll costs one read, then a future and a timer."""
    coordinator, client_id = caller.coordinator, caller.client_id
    ends_at = time.monotonic() + wait_s
    with coordinator.bus.waiter(client_key(client_id)) as waiter:
        if await caller.context.claim_probe.has_work(client_id):
            return await _claim(caller)
        left = ends_at - time.monotonic()
        if left <= 0:
            return ()
        gone = asyncio.ensure_future(_until_disconnect(request))
        gone.add_done_callback(lambda _: waiter.wake())
        with caller.context.metrics.waiting_polls.track_inprogress():
            try:
                while left > 0:
                    is_woken = await waiter.wait(left)
                    if gone.done():
                        return ()
                    if is_woken and (granted := await _claim(caller)):
                        return granted
                    left = ends_at - time.monotonic()
            finally:
                gone.cancel()
    return ()


async def _claim(caller: Caller) -> Sequence[Granted]:
    return await caller.coordinator.task_claims.claim(caller.client_id)


async def _until_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _superseded(since: datetime | None) -> dict[str, str]:
    """Tells a worker that it has to look at `/v1/superseded-models`. Older agents do not know the header."""
    return {} if since is None else {SUPERSEDED_HEADER: since.isoformat()}


def _asked_wait_s(prefer: str | None) -> float:
    match = _WAIT.search(prefer or "")
    return float(match[1]) if match else 0.0


def _longest_wait_s(max_wait_s: float, client_id: UUID) -> float:
    """Waits differ by up to a fifth by client: agents that began together do not come back together for ever."""
    return max_wait_s * (0.8 + 0.2 * (client_id.int % 1009) / 1009)
