"""From a claimed task to what its worker is told."""

from __future__ import annotations

from typing import Final

from coordinator.engine.work import Granted
from services.core.errors import InvariantBroken
from services.core.seeds import derive
from services.wire.v1.work import TaskGrant

HEARTBEAT_EVERY_S: Final = 10.0


def grant_of(granted: Granted) -> TaskGrant:
    task, run, cohort = granted.task, granted.run, granted.cohort
    if task.lease_token is None or task.due_at is None:
        raise InvariantBroken(f"task {task.id} was granted without a lease")
    return TaskGrant.model_construct(
        task_id=task.id,
        kind=task.kind,
        run_id=run.id,
        run_name=run.name,
        cohort=cohort.name,
        epoch=task.epoch,
        round=task.round,
        attempt=task.attempt,
        lease_token=task.lease_token,
        lease_expires_at=task.due_at,
        heartbeat_every_s=min(HEARTBEAT_EVERY_S, run.spec.lease_s / 3),
        model=run.spec.model,
        weights=task.model_digest,
        weights_bytes=granted.weights_bytes,
        local=granted.local,
        work=granted.work,
        seed=derive(run.spec.seed, "local", cohort.name, task.round, task.client_name),
        exclusions=granted.exclusions,
    )
