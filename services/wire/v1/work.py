"""What workers and the coordinator say to each other: session, claim, heartbeat, submit, fail.

Blobs travel outside these messages, as raw safetensors bodies at `/v1/blobs/{digest}`.
"""

from __future__ import annotations

from datetime import datetime
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import Field

from services.audit.spec import Canary
from services.core.figures import MOST_SAMPLES, Figure, FigureName
from services.methods.catalogue import CLIENT_WORK
from services.methods.description import TaskParameters
from services.training.local_spec import LocalTraining
from services.wire.message import Digest, Id, Message, Name, Reply
from services.wire.v1.runs import ModelSpec

PROTOCOL: Final = 1
"""Raised when workers and coordinators of different releases can no longer talk to each other."""

RESULT_HEADER: Final = "Lethe-Result"
"""Goes with the upload of an update: the result of the task, which is then submitted with it."""
MOST_RESULT_BYTES: Final = 2048
"""The length of that header. A longer result is submitted after the upload."""
MOST_MEMORY_MB: Final = 10**9

if TYPE_CHECKING:
    TaskKind = str
    Work = TaskParameters
else:
    TaskKind = Literal[tuple(CLIENT_WORK)]
    _PARAMETERS = reduce(or_, (work.parameters for work in CLIENT_WORK.values() if work.parameters is not None))
    Work = Annotated[_PARAMETERS, Field(discriminator="kind")]
    """What a client needs to know for a kind of task beyond the model: `kind` is that of the task."""
FIGURES_ONLY: Final = frozenset(kind for kind, work in CLIENT_WORK.items() if not work.returns_update)
"""Kinds whose result is figures; all others return an update of the model they were given."""


class Device(Message):
    kind: Literal["cpu", "cuda"]
    name: Annotated[str, Field(max_length=200)] = ""
    memory_mb: Annotated[int, Field(ge=0, le=MOST_MEMORY_MB)] = 0


class SessionRequest(Message):
    """Sent once when an agent starts."""

    agent_version: Annotated[str, Field(max_length=100)]
    protocol: Annotated[int, Field(ge=1, le=10_000)]
    devices: Annotated[list[Device], Field(max_length=64)] = []
    canary: Canary | None = Field(
        default=None, description="A backdoor that it carries in its data: audits of its client's erasure look for it."
    )


class Session(Reply):
    client_id: Id
    client_name: Name
    federation_id: Id
    heartbeat_every_s: float
    max_wait_s: float = Field(description="The longest `Prefer: wait=` that the coordinator honours.")
    max_blob_bytes: int


class TaskGrant(Reply):
    """One task, leased to the caller until `lease_expires_at`."""

    task_id: Id
    kind: TaskKind
    run_id: Id
    run_name: Name
    cohort: str
    epoch: int
    round: int
    attempt: int
    lease_token: str
    lease_expires_at: datetime
    heartbeat_every_s: float
    model: ModelSpec
    weights: Digest
    weights_bytes: int
    local: LocalTraining
    work: Work | None = Field(default=None, description="Parameters of kinds other than train and evaluate.")
    seed: int = Field(description="Derived from (run seed, cohort, round, client name); drives every local draw.")
    exclusions: Digest | None = Field(
        default=None, description="Of the samples to leave out: read `/v1/exclusions` when it is not what you know."
    )


class Claim(Reply):
    """What one long poll brought: one task per cohort the client has work in."""

    tasks: list[TaskGrant]


class Heartbeat(Message):
    lease_token: Annotated[str, Field(max_length=100)]
    progress: Annotated[float, Field(ge=0, le=1)] = 0.0


class HeartbeatReply(Reply):
    lease_expires_at: datetime | None
    directive: Literal["continue", "cancel"] = Field(description="`cancel`: the work is no longer wanted; drop it.")


class Submission(Message):
    """The result of a task: figures, and `update` unless the kind is evaluate or audit."""

    lease_token: Annotated[str, Field(max_length=100)]
    update: Digest | None = None
    num_samples: Annotated[int, Field(ge=1, le=MOST_SAMPLES)]
    metrics: Annotated[dict[FigureName, Figure], Field(max_length=32)] = Field(
        default_factory=dict, examples=[{"loss": 0.4, "accuracy": 0.9, "seconds": 1.5}]
    )


class SubmissionReply(Reply):
    status: Literal["accepted"]
    update_id: Id | None = None


class Failure(Message):
    lease_token: Annotated[str, Field(max_length=100)]
    retryable: bool
    handed_back: bool = Field(default=False, description="Nothing went wrong: the agent stops and gives the task back.")
    reason: Annotated[str, Field(min_length=1, max_length=2000)]
    log_tail: Annotated[str, Field(max_length=20_000)] = ""


class FailureReply(Reply):
    status: Literal["will-retry", "given-up"]


class BlobInfo(Reply):
    digest: Digest
    bytes: int
    submission: SubmissionReply | None = Field(
        default=None, description="What became of the result that came with the upload."
    )
