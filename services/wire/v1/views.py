"""What people and dashboards look at: a run as a picture, as curves and as a grid, lineage as edges, workers, the whole
installation, the feed of a federation, and the keys of certificates."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import ConfigDict, Field

from services.wire.message import Digest, Id, Message, Name
from services.wire.v1.work import Device

_WORD_OF_PYTHON = ConfigDict(serialize_by_alias=True)
"""For fields that are called `from` on the wire."""

# --- a run as a picture -----------------------------------------------------------------------------------------------


class TopologyMember(Message):
    client_id: Id
    name: Name
    joined: bool = Field(description="It came while the run was going.")


class CohortFence(Message):
    """An erasure that moved the cohort to a new epoch."""

    erasure_id: Id
    at: datetime | None
    epoch: int = Field(description="From the fence on.")
    reinitialised: bool = Field(description="It went on from the mean of clean cohorts inside it.")


class Place(Message):
    """In KNOT's plane: seconds of a round against how far an update points away from the others'."""

    time: float
    disparity: float


class Anchor(Place):
    cluster: int


class Plane(Message):
    anchors: list[Anchor] = Field(description="The targets that clusters were made around.")
    time_range: list[float]
    disparity_range: list[float]


class TopologyCohort(Message):
    id: Id
    name: str | None = Field(description="Null: it was named after a client that was erased.")
    kind: Literal["line", "root", "inner", "leaf", "profile", "merge"]
    parent_id: Id | None
    group: str | None = Field(description="Cohorts of a group draw their clients together.")
    epoch: int
    round: int
    phase: str
    num_members: int
    members: list[TopologyMember] = Field(description="Those who take part now, by name.")
    members_left_off: int
    head: Id | None
    head_digest: Digest | None
    accuracy: float | None = Field(description="Of the model that is served, if it was judged.")
    fences: list[CohortFence] = Field(description="Oldest first.")
    place: Place | None


class RunTopology(Message):
    """All cohorts of a run in one answer."""

    run_id: Id
    kind: Literal["flat", "tree", "bi_model", "isolated", "clusters"]
    version: int
    cohorts: list[TopologyCohort]
    plane: Plane | None = Field(description="Of clusters that were made by measuring.")


# --- a run as curves --------------------------------------------------------------------------------------------------


class SeriesPoint(Message):
    round: int
    at: datetime
    value: float
    epoch: int


class Series(Message):
    name: str
    cohort_id: Id
    cohort_name: str | None
    unit: Literal["fraction", "seconds", "bytes", "clients", "none"]
    total: int = Field(description="How many points there are without thinning.")
    points: list[SeriesPoint] = Field(description="In the order of time: the first, the last and all extremes stay.")


class SeriesFence(Message):
    at: datetime | None
    round: int = Field(description="The newest round of these cohorts at the fence.")
    erasure_id: Id
    cohort_ids: list[Id]


class RunSeries(Message):
    run_id: Id
    metrics: list[Series]
    fences: list[SeriesFence]
    cohorts_left_off: int = Field(description="Ask for them by `cohort`.")


# --- a run as a grid --------------------------------------------------------------------------------------------------


class GridRow(Message):
    client_id: Id
    name: Name
    cells: list[str] = Field(description="One code for each of `rounds`.")


class RunGrid(Message):
    """Who did what in which round. Clients that were erased have no row."""

    rounds: list[int]
    clients: list[GridRow]
    codes: dict[str, str]
    left_off: int = Field(description="Clients of the run that are on other pages.")
    next_cursor: str | None = None


# --- lineage as edges -------------------------------------------------------------------------------------------------


class LineageNode(Message):
    checkpoint_id: Id
    cohort_id: Id
    epoch: int
    round: int
    kind: Literal["init", "aggregate", "reinit", "merge", "forgotten"]
    depth: int = Field(description="Steps from the checkpoint that was asked for.")
    superseded_by: Id | None


class LineageEdge(Message):
    """From what went in to what came out: a checkpoint, or a client's update."""

    model_config = _WORD_OF_PYTHON

    from_: Id = Field(alias="from", description="A checkpoint, or an update.")
    to: Id = Field(description="A checkpoint.")
    kind: Literal["parent", "update"]
    client_id: Id | None
    weight: float | None
    num_samples: int | None


class LineageEdges(Message):
    checkpoint_id: Id
    nodes: list[LineageNode] = Field(description="Nearest first.")
    edges: list[LineageEdge]
    nodes_left_off: bool = Field(description="There are more behind; ask for a larger `depth` or from an older one.")
    edges_left_off: int = Field(description="Updates that are not listed; ask for one `client`.")


# --- workers, and the installation ------------------------------------------------------------------------------------


class TaskInHand(Message):
    task_id: Id
    run_id: Id
    kind: str
    round: int
    since: datetime | None
    progress: float


class WorkerFailure(Message):
    task_id: Id
    run_id: Id
    round: int
    reason: str


class Worker(Message):
    """A client's worker, as the coordinator hears of it. Clients that were removed or erased have none."""

    client_id: Id
    client_name: Name
    status: Literal["waiting", "working", "away", "never"] = Field(
        description="away: not heard of for a minute; never: not at all yet."
    )
    last_seen_at: datetime | None
    device: Device | None
    version: str | None
    task_in_hand: TaskInHand | None
    last_failure: WorkerFailure | None
    bytes_received: int = Field(description="Of all updates that were accepted from it.")
    tasks_done: int


class DatabaseHealth(Message):
    kind: Literal["sqlite", "postgres"]
    revision: str | None
    ok: bool


class RedisHealth(Message):
    ok: bool


class BlobFigures(Message):
    kind: Literal["file", "postgres"]
    bytes: int
    objects: int


class FederationStorage(Message):
    federation_id: Id
    bytes: int
    quota_bytes: int | None


class QueueFigures(Message):
    jobs_by_status: dict[str, int] = Field(description="Jobs that are not over.")
    oldest_at: datetime | None


class BackgroundWork(Message):
    name: str
    state: Literal["up", "down"]
    since: datetime
    reason: str | None = None
    restarts: int


class SystemKeys(Message):
    signing_key_id: str | None


class System(Message):
    """How the installation is; `background` and `started_at` are those of the replica that answers."""

    version: str
    started_at: datetime
    database: DatabaseHealth
    redis: RedisHealth | None
    blobs: BlobFigures
    storage_by_federation: list[FederationStorage]
    queue: QueueFigures
    background: list[BackgroundWork]
    keys: SystemKeys


class FeedEvent(Message):
    """Something that happened to a run or a request of a federation."""

    seq: int = Field(description="Of the federation: grows, with gaps.")
    at: datetime
    type: str
    run_id: Id | None
    erasure_id: Id | None
    cohort_id: Id | None
    data: dict[str, Any]


class VerificationKey(Message):
    """A key that this installation signs, or signed, certificates with."""

    model_config = _WORD_OF_PYTHON

    key_id: str
    public_key: str = Field(description="PEM.")
    algorithm: Literal["ed25519"] = "ed25519"
    from_: datetime = Field(alias="from")
    until: datetime | None = Field(description="Null: it signs now.")
