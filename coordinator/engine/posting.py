"""Messages that are posted: written into the outbox, to be decided later in a transaction of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_never
from uuid import UUID

from coordinator.engine.entities import Job
from coordinator.engine.messages import PauseRun, PlaceNewcomer, SettleRun
from services.core.errors import InvariantBroken

Posted = PauseRun | PlaceNewcomer | SettleRun


def to_params(message: Posted) -> dict[str, Any]:
    """What is stored of a message in its job; the id of the job itself is not."""
    params = {"message": type(message).__name__, "run_id": str(message.run_id)}
    match message:
        case PauseRun(hold=hold, reason=reason):
            return {**params, "hold": hold, "reason": reason}
        case PlaceNewcomer(cohort_id=cohort_id):
            return {**params, "cohort_id": str(cohort_id)}
        case SettleRun():
            return params
    assert_never(message)


def from_job(job: Job) -> Posted:
    params: Mapping[str, Any] = job.params
    match params.get("message"):
        case "PauseRun":
            return PauseRun(UUID(params["run_id"]), params["hold"], params["reason"])
        case "PlaceNewcomer":
            return PlaceNewcomer(UUID(params["run_id"]), UUID(params["cohort_id"]), job.id)
        case "SettleRun":
            return SettleRun(UUID(params["run_id"]), job.id)
        case unknown:
            raise InvariantBroken(f"no message that is posted is called {unknown}")


def asks_to_settle(job: Job, run_id: UUID) -> bool:
    return job.kind == "post" and job.run_id == run_id and job.params.get("message") == SettleRun.__name__
