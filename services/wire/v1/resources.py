"""What operators see and send: federations, clients, credentials, runs, cohorts, rounds, checkpoints, events."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import Field

from services.audit.spec import Canary
from services.core.figures import MOST_SAMPLES
from services.incentive.spec import Incentives, Resources, Strategy
from services.wire.message import Digest, Id, Message, Name
from services.wire.v1.erasure import RecoveryChoice
from services.wire.v1.people import FourEyes
from services.wire.v1.runs import RunSpec
from services.wire.v1.work import Device, TaskKind

Role = Literal["viewer", "operator", "compliance", "admin"]
RunStatus = Literal["running", "paused", "completed", "failed", "cancelled"]
Item = TypeVar("Item")


class Page(Message, Generic[Item]):
    items: list[Item]
    next_cursor: str | None = Field(default=None, description="Pass as `cursor` for the next page; absent on the last.")


class Problem(Message):
    """RFC 9457 problem details; `type` is the address of its documentation on this server."""

    type: str
    title: str
    status: int
    detail: str
    instance: str | None = None
    code: str
    retryable: bool
    errors: list[dict[str, Any]] | None = None


class FederationCreate(Message):
    name: Name
    allocation: Strategy | None = Field(
        default=None,
        description="How clients are divided among runs and requests to forget that go on at the same time; every "
        "client serves all of them when absent.",
    )
    incentives: Incentives | None = Field(default=None, description="What jobs pay, for the allocation.")
    four_eyes: FourEyes = Field(
        default="off",
        description="Whether somebody else than the filer has to approve requests to forget: `off`, `asked` (those "
        "that ask for approval) or `all` (every request needs approval).",
    )


class Federation(Message):
    id: Id
    name: Name
    created_at: datetime
    allocation: Strategy | None = Field(default=None, description="How clients are divided among jobs.")
    incentives: Incentives | None = Field(default=None, description="What jobs pay; the defaults when absent.")
    four_eyes: FourEyes = Field(
        default="off", description="Which requests to forget somebody else than the filer has to approve."
    )


class ClientCreate(Message):
    name: Name
    canary: Canary | None = Field(
        default=None,
        description="A backdoor that the client agrees to carry in its data: audits of its erasure look for it.",
    )
    max_samples: Annotated[int, Field(ge=1, le=MOST_SAMPLES)] | None = Field(
        default=None, description="A result in which it claims more samples is refused; a run may allow fewer."
    )
    resources: Resources | None = Field(
        default=None, description="What a round costs it, where clients are divided among jobs; measured when absent."
    )


class Client(Message):
    id: Id
    federation_id: Id
    name: Name
    status: Literal["active", "removed", "erased"]
    created_at: datetime
    online: bool = Field(description="A session, claim or heartbeat arrived within the last minute.")
    last_seen_at: datetime | None = None
    agent_version: str | None = None
    devices: list[Device] = []
    canary: Canary | None = Field(default=None, description="That it carries in its data, for audits of its erasure.")
    max_samples: int | None = Field(default=None, description="The most samples that a result of it may claim.")
    resources: Resources | None = Field(default=None, description="What it declared that a round costs it.")


class IssuedCredential(Message):
    """The only answer that ever contains the token; the coordinator keeps its hash."""

    id: Id
    role: Role | Literal["client"]
    token: str
    client: Client | None = None


class CredentialCreate(Message):
    role: Role
    label: Annotated[str, Field(max_length=100)] = ""


class Credential(Message):
    id: Id
    role: Role | Literal["client"]
    label: str
    client_id: Id | None
    client_name: str | None = Field(default=None, description="The name of the client whose token it is.")
    created_at: datetime
    revoked_at: datetime | None


class RunCreate(Message):
    """`federation_id` may be left out when the credential belongs to a federation."""

    federation_id: Id | None = None
    spec: RunSpec


class RunValidate(RunCreate):
    """Like the start of a run; nothing is changed."""

    to_upload: Annotated[list[Digest], Field(max_length=10)] = Field(
        default=[], description="Blobs that the specification names and that will be uploaded before it is sent."
    )


class RunValidation(Message):
    """What a run of this specification would begin with."""

    num_clients: int
    num_cohorts: int = Field(description="Clusters that are made by measuring are formed later, from one cohort.")
    rounds_planned: int


class RunJoin(Message):
    clients: Annotated[list[Name], Field(min_length=1, max_length=1000)] = Field(
        description="Enrolled clients that are to take part from now on; those who already do are passed over."
    )


class RunRecover(Message):
    """The next rounds of a run are those of a recovery, for instance because accuracy on a class has dropped."""

    recovery: RecoveryChoice
    rounds: Annotated[int, Field(ge=1, le=10_000)] | None = Field(
        default=None, description="When absent, as many as the method says."
    )
    compare_with: Id | None = Field(
        default=None,
        description="A checkpoint of the run from before: the class that lost most since is the one to recover. For "
        "methods that are about one class, where the parameters do not name it.",
    )


class Run(Message):
    id: Id
    federation_id: Id
    name: Name
    status: RunStatus
    reason: str | None = Field(description="Why it is paused, failed, cancelled or completed.")
    version: int
    created_at: datetime
    ended_at: datetime | None
    round: int = Field(description="The newest published round over all cohorts.")
    rounds_planned: int
    accuracy: float | None = Field(description="The newest judged accuracy.")
    spec: RunSpec


class Cohort(Message):
    id: Id
    run_id: Id
    name: str
    epoch: int
    phase: str
    round: int
    head: Id | None = Field(description="The checkpoint now served.")
    num_members: int
    kind: Literal["line", "root", "inner", "leaf", "profile", "merge"]
    parent_id: Id | None = Field(description="The next larger cohort of its tree.")
    group: str = Field(description="Cohorts of a group draw their clients together.")


class Member(Message):
    client_id: Id
    name: Name


class Round(Message):
    id: Id
    run_id: Id
    cohort_id: Id
    epoch: int
    number: int
    kind: TaskKind
    status: Literal["open", "closed", "abandoned"]
    opened_at: datetime
    closed_at: datetime | None
    deadline_at: datetime | None
    num_selected: int
    num_received: int
    num_failed: int
    num_late: int
    num_left_out: int = Field(
        default=0, description="Updates that the round took and its model does not contain: they exceeded its bounds."
    )
    waiting_for_quorum: bool


class Task(Message):
    id: Id
    run_id: Id
    cohort_id: Id
    round_id: Id
    client_id: Id
    client_name: Name
    kind: TaskKind
    status: str
    epoch: int
    round: int
    attempt: int
    num_failures: int
    progress: float
    lease_expires_at: datetime | None
    failure: str | None
    log_tail: str | None


class Checkpoint(Message):
    id: Id
    run_id: Id
    cohort_id: Id
    cohort: str
    epoch: int
    round: int
    kind: Literal["init", "aggregate", "reinit", "merge", "forgotten"] = Field(
        description="forgotten: an approximate method made it of a model that is not served any more."
    )
    digest: Digest
    bytes: int
    base_id: Id | None
    created_at: datetime
    metrics: dict[str, float]
    is_head: bool
    superseded_by: Id | None = Field(default=None, description="The erasure since which it is not served any more.")
    stored: bool = Field(default=True, description="Whether its bytes are still kept.")


class CohortHistory(Message):
    """What is kept of a cohort's updates, and what that is good for."""

    cohort_id: Id
    cohort: str
    rounds: list[int] = Field(description="Of which updates are stored, sealed or as retention keeps them.")
    missing: list[int] = Field(description="Rounds in its model of which no update is stored any more.")
    interval: int | None = Field(
        description="The smallest step that meets no missing round from round 1 on: what federaser's `interval` must "
        "be at least. Null: round 1 is missing, and nothing can be rebuilt."
    )
    num_sealed: int = Field(description="Sealed copies.")
    sealed_bytes: int
    largest_error: float = Field(description="Of any number in a sealed copy.")
    relative_error: float = Field(description="The largest L2 norm of a copy's error, relative to its update's norm.")
    report: str
    suffices_for: list[str] = Field(description="Methods that live on what a run kept, and can here.")


class KeptUpdate(Message):
    """A sealed copy of an update. Its bytes are the blob `digest`; only the coordinator can unseal them."""

    id: Id
    cohort_id: Id
    cohort: str
    round: int
    client_id: Id
    client_name: Name
    base_round: int
    base_digest: Digest = Field(description="The model that it was trained from.")
    source: Digest = Field(description="The update as it was added to the model.")
    digest: Digest
    bytes: int
    dtype: Literal["fp32", "bf16", "fp16", "int8"]
    compression: Literal["none", "zlib"]
    largest_error: float
    relative_error: float
    kept_at: datetime


class Contribution(Message):
    """One client update inside a checkpoint, with the exact weight that the aggregation used."""

    update_id: Id
    client_id: Id
    client_name: Name
    digest: Digest
    base_digest: Digest
    weight: float
    num_samples: int
    staleness: int
    factor: float | None = Field(
        default=None, description="By which the update was scaled down to training.max_update_norm, if it was."
    )
    stored: bool = Field(description="Whether the update's bytes are still kept.")


class ParentModel(Message):
    """One model inside a merged or re-initialised one, with the exact weight that was used."""

    checkpoint_id: Id
    cohort: str
    round: int
    digest: Digest
    weight: float
    superseded_by: Id | None
    stored: bool


class Lineage(Message):
    """How a checkpoint came to be: from a base and the updates added to it, or from other models, in order."""

    checkpoint: Checkpoint
    base: Checkpoint | None
    scale: float
    quantum: float | None = Field(
        default=None, description="Set when every number of the model was rounded to a multiple of this."
    )
    contributions: list[Contribution]
    parents: list[ParentModel] = []
    made_by: Literal["initialisation", "step", "average", "stack", "copy", "method"] = Field(
        default="step",
        description="step: base + scale × weighted mean of the updates; average, stack, copy: of the parents; method: "
        "an approximate one, which cannot be computed again.",
    )
    ancestors: list[Id] = Field(description="All checkpoints it descends from, newest first.")
    clients: list[Name] = Field(description="Every client whose data is in this model, without those it forgot.")


class Event(Message):
    seq: int
    run_id: Id
    cohort_id: Id | None
    at: datetime
    type: str
    data: dict[str, Any]


class Health(Message):
    status: Literal["ok", "not-ready"]
    checks: dict[str, str] = {}
