"""The last step of an upload: the record that makes the blob visible."""

from __future__ import annotations

from coordinator.engine.messages import RecordBlob
from coordinator.runtime.coordinator import Coordinator
from coordinator.store import doorway, outbox
from services.core.errors import Rejected


async def record_upload(coordinator: Coordinator, record: RecordBlob) -> None:
    """Record a stored blob. Retention may have deleted the same bytes between their storing and their recording; a
    record must never outlive its bytes, so that case is undone and the sender asked to begin again."""
    try:
        await coordinator.shell.handle(record)
    except Rejected:  # the client was erased while it sent this
        async with coordinator.database.read() as connection:
            is_of_another = await doorway.recorded_bytes(connection, record.federation_id, record.digest) is not None
        if not is_of_another:
            await coordinator.blobs.delete(record.federation_id, record.digest)
        raise
    if await coordinator.blobs.stat(record.federation_id, record.digest) is None:
        async with coordinator.database.write() as connection:
            await outbox.forget_blob(connection, record.federation_id, record.digest)
        detail = "retention collected these bytes while they were being recorded; send them again"
        raise Rejected("upload-offset-mismatch", detail, offset=0)
