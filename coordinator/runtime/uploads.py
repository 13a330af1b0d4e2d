"""The last step of an upload: the record that makes the blob visible."""

from __future__ import annotations

from coordinator.engine.messages import RecordBlob
from coordinator.runtime.coordinator import Coordinator
from coordinator.store import references
from services.core.errors import Rejected


async def record_upload(coordinator: Coordinator, record: RecordBlob) -> None:
    """Record a stored blob. The shell refuses the record of bytes that were deleted since; the sender begins again."""
    try:
        await coordinator.shell.handle(record)
    except Rejected as rejected:
        if rejected.code != "upload-offset-mismatch":  # the client was removed or erased while it sent this
            async with coordinator.database.write() as connection:
                unused = await references.release_unrecorded(connection, record.federation_id, record.digest)
                await coordinator.blobs.delete(record.federation_id, *unused)
        raise
