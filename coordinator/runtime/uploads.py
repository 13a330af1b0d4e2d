"""The beginning and the end of an upload: the row that announces it, and the record that makes it a blob."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.batching import Gathered
from coordinator.engine.entities import Blob, Facts
from coordinator.engine.messages import RecordBlob, SubmitResult
from coordinator.engine.replies import Accepted
from coordinator.runtime.shell import Shell
from coordinator.runtime.storage import Storage
from coordinator.runtime.transactions import transact
from coordinator.store import blobs as rows
from coordinator.store import superseded
from coordinator.store.blobs import HeldTask
from coordinator.store.database import Database
from services.core.errors import Rejected
from services.tensors.inspection import Inspection
from services.tensors.layout import REMEMBERED_TENSORS, Layout


@dataclass(frozen=True, slots=True)
class UploadRequest:
    """What somebody is about to send. `client_id` None: an operator."""

    federation_id: UUID
    client_id: UUID | None
    task_id: UUID | None
    """None: the only one that the client holds."""
    digest: str
    total: int


class Uploads:
    def __init__(self, database: Database, shell: Shell, storage: Storage) -> None:
        self._database, self._shell, self._storage = database, shell, storage
        self._announcing = Gathered(self._announce)

    async def find(self, wanted: UploadRequest) -> Blob | None:
        """What was announced before, by whoever sends the same again. Rejects `no-task`."""
        async with self._database.read() as connection:
            if wanted.client_id is None:
                found = await rows.of_operators(connection, [wanted.federation_id], [wanted.digest])
            else:
                task = _task(wanted, await rows.held_tasks(connection, [wanted.client_id]))
                found = await rows.of_tasks(connection, [task.id], [wanted.digest])
        return found[0] if found else None

    async def announce(self, wanted: UploadRequest) -> Blob:
        """The blob that its bytes will be, also when some or all of them are there. Rejects `no-task`. What is asked
        for together is announced together."""
        outcome = await self._announcing.ask(wanted)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def record(self, blob: Blob, inspection: Inspection) -> None:
        """All is there. Whatever must not be stored after all, or is here already, is given up."""
        await self._record(blob, await record_of(blob, inspection))

    async def record_and_submit(self, blob: Blob, inspection: Inspection, result: SubmitResult) -> Accepted:
        """Like `record`, with the result that the upload is for. Both messages are sent together, so that they share a
        transaction; a result is refused with its update."""
        recording = self._record(blob, await record_of(blob, inspection))
        recorded, accepted = await asyncio.gather(recording, self._shell.handle(result), return_exceptions=True)
        if isinstance(recorded, BaseException):
            raise recorded
        if isinstance(accepted, BaseException):
            raise accepted
        return accepted

    async def _record(self, blob: Blob, message: RecordBlob) -> None:
        try:
            recorded = await self._shell.handle(message)
        except Rejected:
            await self._storage.give_up(blob.federation_id, [blob.id])
            raise
        if recorded.id != blob.id:
            await self._storage.give_up(blob.federation_id, [blob.id])

    async def _announce(self, lot: list[UploadRequest]) -> dict[UploadRequest, Blob | Exception]:
        """The announcement may be lost with the database's host: without it the bytes are noise, and are swept."""
        async with self._database.read() as connection:
            now = await self._database.about_now(connection)
            tasks = await rows.held_tasks(connection, {w.client_id for w in lot if w.client_id is not None})
            refused = await _refused(connection, [w for w in lot if w.client_id is None])
        outcomes: dict[UploadRequest, Blob | Exception] = {}
        for wanted in lot:
            try:
                if wanted.client_id is None:
                    if rejected := refused.get((wanted.federation_id, wanted.digest)):
                        raise rejected
                    blob = await self._storage.sealer.of_operator(
                        wanted.federation_id, wanted.digest, wanted.total, now
                    )
                else:
                    task = _task(wanted, tasks)
                    blob = await self._storage.sealer.of_task(
                        wanted.federation_id, task, wanted.digest, wanted.total, now
                    )
                outcomes[wanted] = blob
            except Exception as error:
                outcomes[wanted] = error
        new = [outcome for outcome in outcomes.values() if isinstance(outcome, Blob)]
        settled = await transact(self._database, lambda connection: _settled(connection, new), is_durable=False)
        return {
            wanted: settled.get(_place(one), one) if isinstance(one, Blob) else one for wanted, one in outcomes.items()
        }


async def _settled(connection: AsyncConnection, new: list[Blob]) -> dict[tuple[object, ...], Blob]:
    """Store the announcements; by place, what holds: these, or those of somebody who was at the same before."""
    announced = await rows.announce(connection, new)
    settled = {_place(blob): blob for blob in new if blob.id in announced}
    left = [blob for blob in new if blob.id not in announced]
    if left:
        digests = [blob.digest for blob in left if blob.digest is not None]
        found = await rows.of_tasks(connection, [b.origin_id for b in left if b.origin_id is not None], digests)
        found += await rows.of_operators(connection, {b.federation_id for b in left}, digests)
        settled |= {_place(blob): blob for blob in found}
    return settled


def _place(blob: Blob) -> tuple[object, ...]:
    """What is one blob and not two."""
    return blob.origin, blob.origin_id or blob.federation_id, blob.digest


def _task(wanted: UploadRequest, held: list[HeldTask]) -> HeldTask:
    own = [task for task in held if task.client_id == wanted.client_id]
    if wanted.task_id is not None:
        if found := [task for task in own if task.id == wanted.task_id]:
            return found[0]
        raise Rejected("no-task", f"this client holds no task {wanted.task_id}; drop this work, claim again")
    if len(own) == 1:
        return own[0]
    if own:
        detail = (
            f"this client holds {len(own)} tasks; name the one that this is for in the Lethe-Task header, and upgrade "
            "an agent that does not"
        )
    else:
        detail = "this client holds no task; claim one, and upload what it asks for"
    raise Rejected("no-task", detail)


async def _refused(connection: AsyncConnection, of_operators: list[UploadRequest]) -> dict[tuple[UUID, str], Rejected]:
    """What operators may not even begin to send: a part of it would be kept like the whole."""
    if not of_operators:
        return {}
    named = {(wanted.federation_id, wanted.digest) for wanted in of_operators}
    gone = await superseded.superseded(connection, named, with_updates=True)
    updates = await rows.are_updates(connection, named)
    detail = "an erasure took these bytes out of use; upload something else"
    refused = {one: Rejected("superseded", detail) for one in gone}
    detail = "these are the bytes of a client's update, which may have to be forgotten; upload something else"
    return refused | {one: Rejected("anothers-bytes", detail) for one in updates}


async def record_of(blob: Blob, inspection: Inspection) -> RecordBlob:
    """The message that makes an upload visible. Computed in a thread when there is much to do."""

    def both() -> tuple[str, str]:
        return layout.digest(), layout.updatable().digest()

    assert blob.digest is not None
    layout: Layout = inspection.layout
    few = len(layout.tensors) <= REMEMBERED_TENSORS
    layout_digest, updatable_digest = both() if few else await asyncio.to_thread(both)
    facts = Facts(inspection.num_bytes, layout_digest, updatable_digest, inspection.finite)
    return RecordBlob(blob.id, blob.federation_id, blob.digest, facts, blob.client_id)
