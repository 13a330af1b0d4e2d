"""What a certificate of erasure claims: an in-toto predicate of the type `PREDICATE_TYPE`.

It holds digests, counts, times and scores; never tensors, names, or differences between models before and after.
Clients appear as commitments (`commit`) to a name, a request and a federation: whoever has the opening can recognise
them, and once it is deleted nobody can. Artefacts appear as the root of a Merkle tree; the list of them is a file
beside the certificate (`artefact_list.py`). Which values contradict each other is said in `objections.py`.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Annotated, Final, Literal
from uuid import UUID

from pydantic import Field

from services.audit import canonical
from services.audit.v1.predicate import (
    MEANINGS,
    AuditFigure,
    CohortOutcome,
    Count,
    Guarantee,
    GuaranteeKind,
    Instant,
    Issuer,
    Label,
    Outcome,
    Parent,
    Replayable,
    Request,
    Sentence,
    Subject,
    SubjectDigest,
    Tally,
    Workers,
    extent_of,
)
from services.audit.v1.predicate import STANDING_LIMITS as EARLIER_LIMITS
from services.audit.v1.predicate import Aspect as EarlierAspect
from services.audit.v1.predicate import Method as EarlierMethod
from services.wire.message import Digest, Id, Message
from services.wire.v1.erasure import Ground

__all__ = [
    "MEANINGS",
    "Aspect",
    "AuditFigure",
    "CohortOutcome",
    "Count",
    "Guarantee",
    "GuaranteeKind",
    "Handling",
    "Influence",
    "Issuer",
    "Label",
    "Method",
    "Outcome",
    "Package",
    "Parent",
    "Party",
    "Replayable",
    "Request",
    "Subject",
    "SubjectDigest",
    "Workers",
    "extent_of",
]

PREDICATE_TYPE: Final = "https://lethe.dev/attestation/erasure/v2"
SALT_BYTES: Final = 32

ArtefactKind = Literal[
    "update",
    "history",
    "checkpoint",
    "merge",
    "step",
    "upload",
    "part",
    "credential",
    "sealing-key",
    "log-tail",
    "device",
    "figure",
    "canary",
    "failure-reason",
    "worker-cache",
    "ledger",
]
Aspect = EarlierAspect | Literal["allocation"]
Disposition = Literal[
    "deleted",
    "destroyed",
    "revoked",
    "reduced",
    "scrubbed",
    "reported",
    "unconfirmed",
    "also-held-by-another",
    "also-held-as-operator-upload",
]

KINDS: Final[Mapping[ArtefactKind, str]] = {
    "update": "What a client trained and submitted: the leaver, or somebody from a model with the leaver in it.",
    "history": "A lossy copy of an update, kept for methods that walk through past rounds.",
    "checkpoint": "A published model with the leaver in its ancestry.",
    "merge": "A model merged from others, one of which has the leaver in its ancestry.",
    "step": "What a kernel made of these and was never published: residuals, profiles, selection states, method steps.",
    "upload": "Bytes that were uploaded and never submitted.",
    "part": "The beginning of an upload that was never finished.",
    "credential": "A token of the leaver.",
    "sealing-key": "A key that some of the others were sealed under.",
    "log-tail": "The last lines of a worker's log.",
    "device": "What a worker said of its machine.",
    "figure": "A loss, an accuracy or a time that the leaver reported.",
    "canary": "The backdoor that the leaver agreed to carry, so that an audit can look for it.",
    "failure-reason": "Why a task failed, in the words of the leaver's worker.",
    "worker-cache": "Superseded models that a worker keeps to save downloads.",
    "ledger": "What the leaver earned and paid, where clients are divided among jobs.",
}
DISPOSITIONS: Final[Mapping[Disposition, str]] = {
    "deleted": "Its bytes and the record of where they lay are deleted here.",
    "destroyed": "The key is destroyed: what it sealed can be read by nobody, wherever a copy of it lies.",
    "revoked": "The credential opens nothing any more.",
    "reduced": "The credential opens nothing but its own request and certificate, until it expires.",
    "scrubbed": "It is taken out of every row and of the journal.",
    "reported": "The worker reports that it dropped it; the coordinator cannot see into its host.",
    "unconfirmed": "Whoever holds it has not reported that it is gone.",
    "also-held-by-another": "The same bytes are also of somebody who stays, and are kept as theirs.",
    "also-held-as-operator-upload": "An operator uploaded the same bytes, and they are kept as that upload.",
}
_OF_BYTES: Final = frozenset[Disposition]({"deleted", "also-held-by-another", "also-held-as-operator-upload"})
POSSIBLE: Final[Mapping[ArtefactKind, frozenset[Disposition]]] = {
    "update": _OF_BYTES,
    "history": _OF_BYTES,
    "checkpoint": _OF_BYTES,
    "merge": _OF_BYTES,
    "step": _OF_BYTES,
    "upload": _OF_BYTES,
    "part": _OF_BYTES,
    "credential": frozenset({"revoked", "reduced"}),
    "sealing-key": frozenset({"destroyed"}),
    "log-tail": frozenset({"scrubbed"}),
    "device": frozenset({"scrubbed"}),
    "figure": frozenset({"scrubbed"}),
    "canary": frozenset({"scrubbed"}),
    "failure-reason": frozenset({"scrubbed"}),
    "worker-cache": frozenset({"reported", "unconfirmed"}),
    "ledger": frozenset({"scrubbed"}),
}
"""What can become of what. May grow; a pair that was once signed stays possible."""

STANDING_LIMITS: Final = (
    *EARLIER_LIMITS,
    "It is assumed that those who stay train honestly: a changed copy of an old model cannot be told from an update.",
)
"""True of every erasure; an issuer adds its own."""
PLAIN_BACKUPS: Final = (
    "What this certificate accounts for was not always stored sealed: a backup that was made before can be read for as "
    "long as it is kept."
)
"""A limit wherever anything was stored that the destroyed keys do not cover."""

NonZero = Annotated[int, Field(ge=1)]


def commit(client: str, request_id: UUID, federation_id: UUID, salt: bytes) -> str:
    """HMAC-SHA256 of who was erased, by which request, in which federation, under the request's salt: so that no
    certificate can be shown for another client, request or federation."""
    if len(salt) != SALT_BYTES:
        raise ValueError(f"a salt has {SALT_BYTES} bytes")
    said = canonical.encode({"client": client, "federation": str(federation_id), "request": str(request_id)})
    return "hmac-sha256:" + hmac.new(salt, said, hashlib.sha256).hexdigest()


class Influence(Message):
    """A decision, not a model, that the leaver took part in and that still stands."""

    aspect: Aspect
    explanation: Sentence


class Package(Message):
    name: Label
    version: Label


class Method(EarlierMethod):
    """`package`: what the method came with; it is missing where that was not recorded."""

    package: Package | None = Field(default=None, exclude_if=lambda package: package is None)


class KindCount(Message):
    """`planned`: so many were found before anything was deleted; `dispositions`: what became of how many."""

    planned: Tally
    dispositions: dict[Disposition, NonZero]


class Artefacts(Message):
    """Everything that was derived from the erased data. `root`: of the Merkle tree over the list, one leaf a line."""

    root: Digest
    num_leaves: Tally
    kinds: dict[ArtefactKind, KindCount]


class Incident(Message):
    """Something that an operator had to accept and that this claim cannot make good."""

    at: Instant
    kind: Annotated[str, Field(pattern=r"^[a-z]+(-[a-z]+)*$", max_length=60)]
    explanation: Sentence


class Party(Message):
    """Who filed or approved. Staff appear under the label of their credential, or their own name where they signed in
    with it, unless that names somebody who was erased; a client only as one."""

    credential: Id
    role: Label
    label: Label | None = None
    person: Label | None = None


class Handling(Message):
    """`eyes`: as whom the filer and the approver can be told apart; null if somebody approved what may be their own
    request, and where nobody had to. `deadline_before`: of the request, if its legal deadline was extended."""

    filed_by: Party | None
    ground: Ground | None = None
    needed_approval: bool
    approved_by: Party | None = None
    approved_at: Instant | None = None
    eyes: Literal["two persons", "two credentials"] | None = None
    deadline_before: Instant | None = None


class ErasurePredicate(Message):
    federation: Id
    request: Request
    handling: Handling | None = Field(default=None, exclude_if=lambda handling: handling is None)
    method: Method
    guarantee: Guarantee
    cohorts: tuple[CohortOutcome, ...]
    num_cohorts: Count
    artefacts: Artefacts
    still_shaped_by: tuple[Influence, ...]
    workers: Workers
    audit: tuple[AuditFigure, ...] = ()
    replayable: Replayable
    limits: Annotated[tuple[Sentence, ...], Field(min_length=1)]
    incidents: tuple[Incident, ...] = ()
    issuer: Issuer


class Statement(Message):
    type: Literal["https://in-toto.io/Statement/v1"] = Field(alias="_type")
    subject: tuple[Subject, ...]
    predicate_type: Literal["https://lethe.dev/attestation/erasure/v2"] = Field(alias="predicateType")
    predicate: ErasurePredicate

    @property
    def subjects(self) -> list[tuple[str, str]]:
        """(name, digest) of every model that was served when the certificate was issued."""
        return [(subject.name, f"sha256:{subject.digest.sha256}") for subject in self.subject]
