"""Claims, and what a worker is told of a task.

A run that breaks a client's claim is set aside, and the client gets the tasks of its other runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final
from uuid import UUID

import structlog

from coordinator.engine.entities import Client
from coordinator.engine.messages import ClaimTasks, OpenSession
from coordinator.engine.replies import Granted
from coordinator.runtime.set_aside import SetAside, WorkItem
from coordinator.runtime.shell import Shell
from coordinator.store import due
from coordinator.store.database import Database, Unavailable
from services.core.errors import InvariantBroken, Rejected
from services.core.seeds import derive
from services.wire.v1.work import TaskGrant

log = structlog.get_logger()
HEARTBEAT_EVERY_S: Final = 10.0
CLAIM: Final = "claim"
"""The kind of what is set aside here."""


class TaskClaims:
    def __init__(self, database: Database, shell: Shell, set_aside: SetAside) -> None:
        self._database, self._shell, self._set_aside = database, shell, set_aside
        self._hindered: set[UUID] = set()
        """Clients that met a run which broke their claim."""

    async def claim(self, client_id: UUID) -> Sequence[Granted]:
        """Every task that is ready for the client, in runs that can be read."""
        if self._hindered and not self._set_aside.held(CLAIM):
            self._hindered.clear()
        if client_id not in self._hindered:
            try:
                granted = await self._shell.handle(ClaimTasks(client_id))
                for run_id in {one.run.id for one in granted} if len(self._set_aside) else ():
                    self._set_aside.clear(WorkItem(CLAIM, run_id, run_id))
                return granted
            except (Rejected, Unavailable):
                raise
            except Exception as error:  # which of its runs it is will show
                log.warning("claim.taken-apart", client=str(client_id), error=type(error).__name__)
                self._hindered.add(client_id)
        return await self._claim_run_by_run(client_id)

    async def open_session(self, message: OpenSession) -> Client:
        """A client whose tasks cannot be read gets on without them."""
        try:
            return await self._shell.handle(message)
        except (Rejected, Unavailable):
            raise
        except Exception as error:
            log.warning("session.opened-without-tasks", client=str(message.client_id), error=type(error).__name__)
            return await self._shell.handle(replace(message, frees_tasks=False))

    async def _claim_run_by_run(self, client_id: UUID) -> list[Granted]:
        async with self._database.read() as connection:
            run_ids = await due.runs_to_claim_from(connection, client_id)
        granted: list[Granted] = []
        for run_id in run_ids:
            item = WorkItem(CLAIM, run_id, run_id)
            if not self._set_aside.is_due(item):
                continue
            try:
                granted += await self._shell.handle(ClaimTasks(client_id, run_id))
                self._set_aside.clear(item)
            except (Rejected, Unavailable):
                raise
            except Exception as error:
                self._set_aside.put(item, error)
        return granted


def grant_of(granted: Granted) -> TaskGrant:
    task, run, cohort = granted.task, granted.run, granted.cohort
    if task.lease_token is None or task.due_at is None:
        raise InvariantBroken(f"task {task.id} was granted without a lease")
    return TaskGrant.model_construct(
        task_id=task.id,
        kind=granted.kind,
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
