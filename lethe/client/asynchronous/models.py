"""Checkpoints with their lineage and bytes, and the blobs that runs refer to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from lethe.client.answers import Answer, is_id
from lethe.client.asynchronous.connection import AsyncConnection
from lethe.client.http import digest_of
from lethe.client.views import BlobInfo, Lineage, LineageEdges, Member
from lethe.errors import NotFound
from services.wire.v1 import resources

if TYPE_CHECKING:
    from lethe.client.asynchronous.accounts import AsyncFederations
    from lethe.client.asynchronous.runs import AsyncRuns


class AsyncCheckpoint(Answer, resources.Checkpoint):
    """A model that a run published."""

    async def lineage(self) -> Lineage:
        """Whose updates, with which weights, made it, and from which base."""
        return Lineage.read(await self._connection.request("GET", f"/v1/checkpoints/{self.id}/lineage"))

    async def lineage_edges(self, *, depth: int = 10, client: str | UUID | None = None) -> LineageEdges:
        """The models up to so many steps behind it, and what went into each. `client`: only updates of this id."""
        path, query = f"/v1/checkpoints/{self.id}/lineage/edges", {"depth": depth, "client": client}
        return LineageEdges.read(await self._connection.request("GET", path, query=query))

    async def download(self, out: str | Path) -> int:
        """Its bytes, as a safetensors file; returns their number."""
        found: int = await self._connection.download(f"/v1/checkpoints/{self.id}/model", Path(out))
        return found


class AsyncCheckpoints:
    def __init__(self, connection: AsyncConnection, runs: AsyncRuns) -> None:
        self._connection, self._runs = connection, runs

    async def get(self, checkpoint: str | UUID) -> AsyncCheckpoint:
        """The one of that id; for the name of a run, the newest of the models that it serves."""
        if is_id(checkpoint):
            document = await self._connection.request("GET", f"/v1/checkpoints/{checkpoint}")
            return AsyncCheckpoint.read(document, self._connection)
        run = await self._runs.get(checkpoint)
        heads = [one async for one in run.checkpoints() if one.is_head]
        if not heads:
            raise NotFound.by_name(f"run {run.name} serves no model yet", "served model")
        return max(heads, key=lambda one: one.created_at)


class AsyncCohort(Answer, resources.Cohort):
    """Clients that train one model."""

    async def members(self) -> AsyncIterator[Member]:
        async for document in self._connection.pages(f"/v1/cohorts/{self.id}/members"):
            yield Member.read(document)


class AsyncCohorts:
    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def get(self, cohort: str | UUID) -> AsyncCohort:
        document = await self._connection.request("GET", f"/v1/cohorts/{cohort}")
        return AsyncCohort.read(document, self._connection)


class AsyncBlobs:
    """Safetensors files, named by the digest of their bytes. `task` is for workers: the task that an upload is for."""

    def __init__(self, connection: AsyncConnection, federations: AsyncFederations) -> None:
        self._connection, self._federations = connection, federations

    async def upload(
        self, path: str | Path, *, federation: str | UUID | None = None, task: str | UUID | None = None
    ) -> BlobInfo:
        """Store a file under the digest of its bytes; cheap when it is there already."""
        file = Path(path)
        federation_id = await self._federations.id_of(federation) if task is None else None
        headers = {"Content-Type": "application/octet-stream", **_for_task(task)}
        found = await self._connection.upload(
            "PUT", f"/v1/blobs/{digest_of(file)}", file, headers, federation_id=federation_id
        )
        return BlobInfo.read(found)

    async def append(
        self, digest: str, piece: bytes, *, offset: int, length: int, task: str | UUID | None = None
    ) -> BlobInfo | None:
        """Go on with an upload from the offset that `received` gave; None: more is to come."""
        headers = {
            "Content-Type": "application/octet-stream",
            "Upload-Offset": str(offset),
            "Upload-Length": str(length),
            **_for_task(task),
        }
        found = await self._connection.upload("PATCH", f"/v1/blobs/{digest}", piece, headers)
        return None if found is None else BlobInfo.read(found)

    async def received(self, digest: str, *, federation: str | UUID | None = None) -> tuple[int, bool]:
        """How many bytes of it the coordinator has, and whether that is all of it."""
        headers = await self._connection.head(f"/v1/blobs/{digest}", federation_id=federation)
        if "upload-offset" in headers:
            return int(headers["upload-offset"]), False
        return int(headers.get("content-length", 0)), True

    async def download(self, digest: str, out: str | Path, *, federation: str | UUID | None = None) -> int:
        return await self._connection.download(f"/v1/blobs/{digest}", Path(out), federation_id=federation)


def _for_task(task: Any) -> dict[str, str]:
    return {} if task is None else {"Lethe-Task": str(task)}
