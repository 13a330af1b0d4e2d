# Made from lethe/client/asynchronous/runs.py by scripts/make-synchronous: change that file.
"""Runs: start, follow and steer training."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final
from uuid import UUID, uuid4

from lethe.client.answers import is_id, only
from lethe.client.series import as_frame, rows_of
from lethe.client.synchronous.accounts import Federations
from lethe.client.synchronous.connection import Connection
from lethe.client.synchronous.models import Blobs, Checkpoint, Cohort
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


class Run(RunFields):
    """A training run, as it was when it was asked for: `refresh()` asks again."""

    @property
    def _path(self) -> str:
        return f"/v1/runs/{self.id}"

    def refresh(self) -> Run:
        return Run.read(self._connection.request("GET", self._path), self._connection)

    def pause(self, *, if_unchanged: bool = False) -> Run:
        """Hand out no more work; what is done stays. `if_unchanged`: only if it is still as it is here."""
        return self._steer("pause", if_unchanged)

    def resume(self, *, if_unchanged: bool = False) -> Run:
        """Go on with a paused run, or with one that failed, once the cause is gone."""
        return self._steer("resume", if_unchanged)

    def cancel(self, *, if_unchanged: bool = False) -> Run:
        """End it for good; its checkpoints stay."""
        return self._steer("cancel", if_unchanged)

    def _steer(self, action: str, if_unchanged: bool, body: Any = None) -> Run:
        headers = {"If-Match": f'"{self.version}"'} if if_unchanged else None
        document = self._connection.request("POST", f"{self._path}/{action}", body, headers=headers)
        return Run.read(document, self._connection)

    def join(self, *clients: str) -> Run:
        """Let enrolled clients take part from its next round on."""
        document = self._connection.request("POST", f"{self._path}/members", {"clients": list(clients)})
        return Run.read(document, self._connection)

    def recover(
        self,
        method: str,
        *,
        params: Mapping[str, Any] | None = None,
        rounds: int | None = None,
        compare_with: str | UUID | None = None,
        if_unchanged: bool = False,
    ) -> Run:
        """Make its next rounds those of a recovery. `compare_with`: the class that lost most since this checkpoint is
        the one to recover, for methods that are about one class."""
        recovery = {"method": method, "params": dict(params or {})}
        body = {"recovery": recovery, "rounds": rounds, "compare_with": compare_with}
        return self._steer("recover", if_unchanged, body)

    # what it consists of

    def cohorts(self) -> Iterator[Cohort]:
        for document in self._connection.pages(f"{self._path}/cohorts"):
            yield Cohort.read(document, self._connection)

    def rounds(self) -> Iterator[Round]:
        for document in self._connection.pages(f"{self._path}/rounds"):
            yield Round.read(document)

    def tasks(self, *, status: str | None = None) -> Iterator[Task]:
        for document in self._connection.pages(f"{self._path}/tasks", status=status):
            yield Task.read(document)

    def checkpoints(self) -> Iterator[Checkpoint]:
        for document in self._connection.pages(f"{self._path}/checkpoints"):
            yield Checkpoint.read(document, self._connection)

    def history(self) -> Iterator[CohortHistory]:
        """What is kept of past rounds, cohort by cohort."""
        for document in self._connection.pages(f"{self._path}/history"):
            yield CohortHistory.read(document)

    def kept_updates(self) -> Iterator[KeptUpdate]:
        for document in self._connection.pages(f"{self._path}/history/updates"):
            yield KeptUpdate.read(document)

    def metrics(self) -> Any:
        """Accuracy, loss and all other figures of each published model: a DataFrame if pandas is there, else a list of
        dictionaries."""
        return as_frame(rows_of([one for one in self.checkpoints()]))

    def topology(self, *, members: int = 50) -> Topology:
        """All cohorts in one answer. `members`: at most so many of each."""
        return Topology.read(self._connection.request("GET", f"{self._path}/topology", query={"members": members}))

    def series(self, *metrics: str, cohorts: Sequence[str | UUID] = (), points: int = 400) -> RunSeries:
        """How figures went, thinned to so many points each: accuracy, loss, seconds and clients when none is named."""
        query = {"metric": list(metrics) or None, "cohort": list(cohorts) or None, "points": points}
        return RunSeries.read(self._connection.request("GET", f"{self._path}/series", query=query))

    def grid(
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
        return Grid.read(self._connection.request("GET", f"{self._path}/grid", query=query))

    # what happens to it

    def events(self, *, after: int = 0) -> Iterator[Event]:
        """What happened up to now."""
        for document in self._connection.events(f"{self._path}/events", after):
            yield Event.read(document)

    def follow(self, *, after: int = 0) -> Generator[Event]:
        """What happened and happens, until the run ends, across restarts of the coordinator, too."""
        with closing(self.watch(after=after)) as events:
            for event in events:
                if event is not None:
                    yield event

    def watch(self, *, after: int = 0) -> Generator[Event | None]:
        """Like `follow`; None whenever the connection was lost and is being made again."""
        with closing(self._connection.follow(f"{self._path}/events/stream", after)) as documents:
            for document in documents:
                yield None if document is None else Event.read(document)
                if document is not None and document["type"] == "RunEnded":
                    return

    def wait(self) -> Run:
        """The run when it has completed; `NotCompleted` when it ended otherwise."""
        for _ in self.follow():
            pass
        run = self.refresh()
        if run.status != "completed":
            why = f": {run.reason}" if run.reason else ""
            raise NotCompleted(f"the run {run.name} {run.status}{why}", run.status)
        return run


class Runs:
    def __init__(self, connection: Connection, federations: Federations, blobs: Blobs) -> None:
        self._connection, self._federations, self._blobs = connection, federations, blobs

    def create(
        self,
        spec: Specification,
        *,
        federation: str | UUID | None = None,
        idempotency_key: str | None = None,
    ) -> Run:
        """Start a run. `validation.data` may be a data source and `init` a file, as in a run file: they are uploaded
        first. The same key with the same specification finds the run that the first request made."""
        from lethe.run_file import prepared

        federation_id = self._federations.id_of(federation)
        with prepared(spec) as (document, files):
            for file in files:
                self._blobs.upload(file, federation=federation_id)
        document = self._connection.request(
            "POST",
            "/v1/runs",
            {"federation_id": federation_id, "spec": document},
            headers={"Idempotency-Key": idempotency_key or str(uuid4())},
        )
        return Run.read(document, self._connection)

    def validate(
        self, spec: Specification, *, federation: str | UUID | None = None, to_upload: Sequence[str] = ()
    ) -> RunValidation:
        """Whether it could be started now; nothing is uploaded or changed."""
        from lethe.client.http import digest_of
        from lethe.run_file import prepared

        federation_id = self._federations.id_of(federation)
        with prepared(spec) as (document, files):
            missing = [*to_upload, *map(digest_of, files)]
        body = {"federation_id": federation_id, "spec": document, "to_upload": missing}
        return RunValidation.read(self._connection.request("POST", "/v1/runs:validate", body))

    def list(self, *, federation: str | UUID | None = None, status: str | None = None) -> Iterator[Run]:
        """Newest first."""
        federation_id = None if federation is None else self._federations.id_of(federation)
        for document in self._connection.pages("/v1/runs", federation_id=federation_id, status=status):
            yield Run.read(document, self._connection)

    def get(self, run: str | UUID) -> Run:
        """The one of that id, or the only one of that name in all federations."""
        if is_id(run):
            document = self._connection.request("GET", f"/v1/runs/{run}")
        else:
            documents = [one for one in self._connection.pages("/v1/runs")]
            newest_first = sorted(documents, key=lambda one: str(one["created_at"]), reverse=True)
            document = only("run", str(run), newest_first)
        return Run.read(document, self._connection)
