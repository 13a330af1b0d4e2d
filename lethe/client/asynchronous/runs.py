"""Runs: start, follow and steer training."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final
from uuid import UUID, uuid4

from lethe.client.answers import is_id, only
from lethe.client.asynchronous.accounts import AsyncFederations
from lethe.client.asynchronous.connection import AsyncConnection
from lethe.client.asynchronous.models import AsyncBlobs, AsyncCheckpoint, AsyncCohort
from lethe.client.series import as_frame, rows_of
from lethe.client.views import (
    CohortHistory,
    Event,
    Grid,
    KeptUpdate,
    Round,
    RunFields,
    RunSeries,
    RunValidation,
    Task,
    Topology,
)
from lethe.errors import NotCompleted
from services.wire.v1.runs import RunSpec

Specification = RunSpec | Mapping[str, Any] | str | Path
"""A specification, or a run file."""
ENDED: Final = ("completed", "failed", "cancelled")


class AsyncRun(RunFields):
    """A training run, as it was when it was asked for: `refresh()` asks again."""

    @property
    def _path(self) -> str:
        return f"/v1/runs/{self.id}"

    async def refresh(self) -> AsyncRun:
        return AsyncRun.read(await self._connection.request("GET", self._path), self._connection)

    async def pause(self, *, if_unchanged: bool = False) -> AsyncRun:
        """Hand out no more work; what is done stays. `if_unchanged`: only if it is still as it is here."""
        return await self._steer("pause", if_unchanged)

    async def resume(self, *, if_unchanged: bool = False) -> AsyncRun:
        """Go on with a paused run, or with one that failed, once the cause is gone."""
        return await self._steer("resume", if_unchanged)

    async def cancel(self, *, if_unchanged: bool = False) -> AsyncRun:
        """End it for good; its checkpoints stay."""
        return await self._steer("cancel", if_unchanged)

    async def _steer(self, action: str, if_unchanged: bool, body: Any = None) -> AsyncRun:
        headers = {"If-Match": f'"{self.version}"'} if if_unchanged else None
        document = await self._connection.request("POST", f"{self._path}/{action}", body, headers=headers)
        return AsyncRun.read(document, self._connection)

    async def join(self, *clients: str) -> AsyncRun:
        """Let enrolled clients take part from its next round on."""
        document = await self._connection.request("POST", f"{self._path}/members", {"clients": list(clients)})
        return AsyncRun.read(document, self._connection)

    async def recover(
        self,
        method: str,
        *,
        params: Mapping[str, Any] | None = None,
        rounds: int | None = None,
        compare_with: str | UUID | None = None,
        if_unchanged: bool = False,
    ) -> AsyncRun:
        """Make its next rounds those of a recovery. `compare_with`: the class that lost most since this checkpoint is
        the one to recover, for methods that are about one class."""
        recovery = {"method": method, "params": dict(params or {})}
        body = {"recovery": recovery, "rounds": rounds, "compare_with": compare_with}
        return await self._steer("recover", if_unchanged, body)

    # what it consists of

    async def cohorts(self) -> AsyncIterator[AsyncCohort]:
        async for document in self._connection.pages(f"{self._path}/cohorts"):
            yield AsyncCohort.read(document, self._connection)

    async def rounds(self) -> AsyncIterator[Round]:
        async for document in self._connection.pages(f"{self._path}/rounds"):
            yield Round.read(document)

    async def tasks(self, *, status: str | None = None) -> AsyncIterator[Task]:
        async for document in self._connection.pages(f"{self._path}/tasks", status=status):
            yield Task.read(document)

    async def checkpoints(self) -> AsyncIterator[AsyncCheckpoint]:
        async for document in self._connection.pages(f"{self._path}/checkpoints"):
            yield AsyncCheckpoint.read(document, self._connection)

    async def history(self) -> AsyncIterator[CohortHistory]:
        """What is kept of past rounds, cohort by cohort."""
        async for document in self._connection.pages(f"{self._path}/history"):
            yield CohortHistory.read(document)

    async def kept_updates(self) -> AsyncIterator[KeptUpdate]:
        async for document in self._connection.pages(f"{self._path}/history/updates"):
            yield KeptUpdate.read(document)

    async def metrics(self) -> Any:
        """Accuracy, loss and all other figures of each published model: a DataFrame if pandas is there, else a list of
        dictionaries."""
        return as_frame(rows_of([one async for one in self.checkpoints()]))

    async def topology(self, *, members: int = 50) -> Topology:
        """All cohorts in one answer. `members`: at most so many of each."""
        return Topology.read(
            await self._connection.request("GET", f"{self._path}/topology", query={"members": members})
        )

    async def series(self, *metrics: str, cohorts: Sequence[str | UUID] = (), points: int = 400) -> RunSeries:
        """How figures went, thinned to so many points each: accuracy, loss, seconds and clients when none is named."""
        query = {"metric": list(metrics) or None, "cohort": list(cohorts) or None, "points": points}
        return RunSeries.read(await self._connection.request("GET", f"{self._path}/series", query=query))

    async def grid(
        self,
        *,
        rounds_from: int | None = None,
        rounds_to: int | None = None,
        cohort: str | UUID | None = None,
        clients: int = 100,
        cursor: str | None = None,
    ) -> Grid:
        """Who did what in which round: a page of clients, the newest rounds when none are named."""
        query = {"rounds_from": rounds_from, "rounds_to": rounds_to, "cohort": cohort}
        query |= {"clients": clients, "cursor": cursor}
        return Grid.read(await self._connection.request("GET", f"{self._path}/grid", query=query))

    # what happens to it

    async def events(self, *, after: int = 0) -> AsyncIterator[Event]:
        """What happened up to now."""
        async for document in self._connection.events(f"{self._path}/events", after):
            yield Event.read(document)

    async def follow(self, *, after: int = 0) -> AsyncGenerator[Event]:
        """What happened and happens, until the run ends, across restarts of the coordinator, too."""
        async with aclosing(self.watch(after=after)) as events:
            async for event in events:
                if event is not None:
                    yield event

    async def watch(self, *, after: int = 0) -> AsyncGenerator[Event | None]:
        """Like `follow`; None whenever the connection was lost and is being made again."""
        async with aclosing(self._connection.follow(f"{self._path}/events/stream", after)) as documents:
            async for document in documents:
                yield None if document is None else Event.read(document)
                if document is not None and document["type"] == "RunEnded":
                    return

    async def wait(self) -> AsyncRun:
        """The run when it has completed; `NotCompleted` when it ended otherwise."""
        async for _ in self.follow():
            pass
        run = await self.refresh()
        if run.status != "completed":
            why = f": {run.reason}" if run.reason else ""
            raise NotCompleted(f"the run {run.name} {run.status}{why}", run.status)
        return run


class AsyncRuns:
    def __init__(self, connection: AsyncConnection, federations: AsyncFederations, blobs: AsyncBlobs) -> None:
        self._connection, self._federations, self._blobs = connection, federations, blobs

    async def create(
        self,
        spec: Specification,
        *,
        federation: str | UUID | None = None,
        idempotency_key: str | None = None,
    ) -> AsyncRun:
        """Start a run. `validation.data` may be a data source and `init` a file, as in a run file: they are uploaded
        first. The same key with the same specification finds the run that the first request made."""
        from lethe.run_file import prepared

        federation_id = await self._federations.id_of(federation)
        with prepared(spec) as (document, files):
            for file in files:
                await self._blobs.upload(file, federation=federation_id)
        document = await self._connection.request(
            "POST",
            "/v1/runs",
            {"federation_id": federation_id, "spec": document},
            headers={"Idempotency-Key": idempotency_key or str(uuid4())},
        )
        return AsyncRun.read(document, self._connection)

    async def validate(
        self, spec: Specification, *, federation: str | UUID | None = None, to_upload: Sequence[str] = ()
    ) -> RunValidation:
        """Whether it could be started now; nothing is uploaded or changed."""
        from lethe.client.http import digest_of
        from lethe.run_file import prepared

        federation_id = await self._federations.id_of(federation)
        with prepared(spec) as (document, files):
            missing = [*to_upload, *map(digest_of, files)]
        body = {"federation_id": federation_id, "spec": document, "to_upload": missing}
        return RunValidation.read(await self._connection.request("POST", "/v1/runs:validate", body))

    async def list(self, *, federation: str | UUID | None = None, status: str | None = None) -> AsyncIterator[AsyncRun]:
        """Newest first."""
        federation_id = None if federation is None else await self._federations.id_of(federation)
        async for document in self._connection.pages("/v1/runs", federation_id=federation_id, status=status):
            yield AsyncRun.read(document, self._connection)

    async def get(self, run: str | UUID) -> AsyncRun:
        """The one of that id, or the only one of that name in all federations."""
        if is_id(run):
            document = await self._connection.request("GET", f"/v1/runs/{run}")
        else:
            documents = [one async for one in self._connection.pages("/v1/runs")]
            newest_first = sorted(documents, key=lambda one: str(one["created_at"]), reverse=True)
            document = only("run", str(run), newest_first)
        return AsyncRun.read(document, self._connection)
