"""What a worker says. `lethe worker` says it by itself; these are for agents of one's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from lethe.client.asynchronous.connection import AsyncConnection
from lethe.client.views import (
    Claim,
    Exclusions,
    ExclusionsAccepted,
    FailureReply,
    HeartbeatReply,
    ModelsDroppedAccepted,
    Session,
    SubmissionReply,
    SupersededModels,
)
from services.wire.v1 import work
from services.wire.v1.exclusions import ExclusionsAcknowledgement
from services.wire.v1.superseded_models import ModelsDropped

Body = Mapping[str, Any]


class AsyncWork:
    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def open_session(self, session: work.SessionRequest | Body) -> Session:
        return Session.read(await self._connection.request("POST", "/v1/sessions", session))

    async def claim(self, *, wait_s: float = 0.0) -> Claim:
        """Every task that is ready for this client; with `wait_s`, wait for one (at most about 25 s)."""
        headers = {"Prefer": f"wait={wait_s:g}"} if wait_s else None
        return Claim.read(await self._connection.request("POST", "/v1/tasks/claim", headers=headers) or {"tasks": []})

    async def renew_lease(self, task: str | UUID, heartbeat: work.Heartbeat | Body) -> HeartbeatReply:
        document = await self._connection.request("POST", f"/v1/tasks/{task}/heartbeat", heartbeat)
        return HeartbeatReply.read(document)

    async def submit(self, task: str | UUID, result: work.Submission | Body) -> SubmissionReply:
        return SubmissionReply.read(await self._connection.request("PUT", f"/v1/tasks/{task}/result", result))

    async def report_failure(self, task: str | UUID, failure: work.Failure | Body) -> FailureReply:
        return FailureReply.read(await self._connection.request("POST", f"/v1/tasks/{task}/failure", failure))

    async def exclusions(self) -> Exclusions:
        """The samples to leave out, for good."""
        return Exclusions.read(await self._connection.request("GET", "/v1/exclusions"))

    async def acknowledge_exclusions(self, acknowledgement: ExclusionsAcknowledgement | Body) -> ExclusionsAccepted:
        document = await self._connection.request("PUT", "/v1/exclusions/acknowledgement", acknowledgement)
        return ExclusionsAccepted.read(document)

    async def superseded_models(self) -> SupersededModels:
        """What must not be kept in a cache any more."""
        return SupersededModels.read(await self._connection.request("GET", "/v1/superseded-models"))

    async def confirm_dropped_models(self, dropped: ModelsDropped | Body) -> ModelsDroppedAccepted:
        document = await self._connection.request("PUT", "/v1/superseded-models/dropped", dropped)
        return ModelsDroppedAccepted.read(document)
