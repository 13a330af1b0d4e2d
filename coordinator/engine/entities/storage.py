"""Records of jobs in the outbox and of stored bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Literal
from uuid import UUID

JobKind = Literal["kernel", "post", "collect-updates", "keep-updates", "drop-blob", "fence", "purge", "notify"]
JobStatus = Literal["ready", "leased", "done", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class Job:
    """A command in the outbox: a kernel for the compute role, or a chore of the coordinator."""

    table: ClassVar = "jobs"
    id: UUID
    run_id: UUID | None
    cohort_id: UUID | None
    federation_id: UUID
    epoch: int
    kind: JobKind
    """kernel: maths for the compute role; post: a message for a transaction of its own; collect-updates: retention;
    keep-updates: the sealed history, then retention; drop-blob: of a file that a newer one replaced;
    fence and purge: the steps of an erasure that reach outside the database; notify: a delivery to a callback."""
    kernel: str | None
    params: Mapping[str, Any]
    inputs: list[str]
    status: JobStatus
    created_at: datetime
    lease_token: str | None = None
    due_at: datetime | None = None
    """leased: when the lease runs out; ready: not before."""
    attempt: int = 0
    num_failures: int = 0
    error: str | None = None
    output: str | None = None
    """kernel: the digest of the model it made."""

    @property
    def key(self) -> UUID:
        return self.id


@dataclass(frozen=True, slots=True)
class Blob:
    """Stored bytes with one origin: what a client sent for a task, a kernel made, an operator uploaded, or a lossy copy
    of an update. Equal bytes of two origins are two blobs; a digest is a name, never a permission."""

    table: ClassVar = "blobs"
    id: UUID
    federation_id: UUID
    origin: Literal["task", "job", "operator", "copy"]
    origin_id: UUID | None
    """The task, the job, or the update that it is a copy of."""
    client_id: UUID | None
    """The client whose data alone it was made of."""
    cohort_id: UUID | None
    epoch: int | None
    digest: str | None
    """The digest of the plain bytes; None while a kernel is still making them."""
    num_bytes: int
    """The number of plain bytes; until they are stored, as it was announced."""
    layout_digest: str | None
    updatable_digest: str | None
    """Layout of the floating tensors alone: what an update of this model must look like."""
    finite: bool | None
    status: Literal["arriving", "stored", "dropping"]
    key_name: str | None
    client_key_name: str | None
    data_key: bytes | None
    created_at: datetime

    @property
    def key(self) -> UUID:
        return self.id

    @property
    def is_plain(self) -> bool:
        """An older version stored it, under its digest and not sealed."""
        return self.data_key is None


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of bytes, whoever they are from."""

    num_bytes: int
    layout_digest: str
    updatable_digest: str
    finite: bool
