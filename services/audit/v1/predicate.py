"""What a certificate of the first version claims: an in-toto predicate of the type `PREDICATE_TYPE`.

It holds digests, counts, times and scores; never tensors, names, or differences between models before and after.
Clients appear as commitments (`commit`): whoever has the request's salt can recognise a name, and once the salt is
deleted nobody can. Which values contradict each other is said in `objections.py`.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, AwareDatetime, Field, JsonValue

from services.wire.message import Digest, Id, Message

PREDICATE_TYPE: Final = "https://lethe.dev/attestation/erasure/v1"

GuaranteeKind = Literal["exact", "approximate"]
Outcome = Literal["rolled-back", "re-initialised", "retired", "retrained", "unlearned"]
ArtefactKind = Literal["update", "history", "checkpoint", "merge", "key", "sealing-key", "blob"]
Disposition = Literal["deleted", "superseded", "retained-by-policy", "unreachable"]
Aspect = Literal[
    "cluster-assignment",
    "tree-shape",
    "hyper-parameters",
    "stop-round",
    "validation-by-its-evaluation-tasks",
    "selection-state",
    "planner-estimates",
]

MEANINGS: Final[Mapping[GuaranteeKind, str]] = {
    "exact": (
        "No model named as a subject was computed from the erased data: every model line that held it was rolled back, "
        "restarted, retrained or retired, and no update made from it is among the ancestors of a subject."
    ),
    "approximate": (
        "The influence of the erased data on the models named as subjects was reduced by the named method; they still "
        "descend from models that were trained with it, and no proof is given that nothing of it remains."
    ),
}
"""The only sentences in which a guarantee may be said, so that no certificate promises more than its kind."""

STANDING_LIMITS: Final = (
    "The coordinator certifies what it stores and serves; copies of models or updates that others took before the "
    "fence are outside this claim.",
    "Workers report what they train on and which cached models they drop; the coordinator cannot see into their hosts.",
)
"""What was held to be true of every erasure."""


def _in_utc(moment: datetime) -> datetime:
    if moment.utcoffset() != timedelta(0):
        raise ValueError("times are given in UTC")
    return moment


Instant = Annotated[AwareDatetime, AfterValidator(_in_utc)]
Commitment = Annotated[str, Field(pattern=r"^hmac-sha256:[0-9a-f]{64}$")]
Sentence = Annotated[str, Field(min_length=1, max_length=2000, pattern=r"\S")]
Label = Annotated[str, Field(min_length=1, max_length=200, pattern=r"\S")]
Tally = Annotated[int, Field(ge=0)]


def commit(name: str, salt: bytes) -> str:
    """HMAC-SHA256 of a client's name under the request's salt (32 random bytes, kept where they can be deleted)."""
    if len(salt) < 16:
        raise ValueError("a salt has at least 16 bytes")
    return "hmac-sha256:" + hmac.new(salt, name.encode(), hashlib.sha256).hexdigest()


class Request(Message):
    id: Id
    subjects: Annotated[tuple[Commitment, ...], Field(min_length=1)]
    scope: Literal["client", "samples"]
    regulation: Label
    submitted_at: Instant
    fenced_at: Instant
    first_clean_at: Instant
    completed_at: Instant
    legal_deadline: Instant | None = None


class Method(Message):
    name: Label
    parameters: dict[str, JsonValue] = {}


class Guarantee(Message):
    kind: GuaranteeKind
    meaning: Sentence

    @classmethod
    def plain(cls, kind: GuaranteeKind) -> Guarantee:
        return cls(kind=kind, meaning=MEANINGS[kind])


class Parent(Message):
    """A surviving model that a cohort was started from again."""

    digest: Digest
    weight: Annotated[float, Field(ge=0)]


class CohortOutcome(Message):
    """What became of a cohort that held the erased data.

    rolled-back: it goes on from `rollback_point`, its newest model without the data. re-initialised: from `parents`.
    retrained: from the start. retired: it serves nothing any more. unlearned: an approximate method changed its model.
    """

    run: Id
    name: Label
    epoch_before: Tally
    epoch_after: Tally
    round_at_fence: Tally
    outcome: Outcome
    rollback_point: Digest | None = None
    parents: tuple[Parent, ...] = ()
    round_reached: Tally
    head: Digest | None = None


class Artefact(Message):
    """Something derived from the erased data. history: a sealed copy of an update. key: a credential; sealing-key: what
    such copies were sealed with; both are named by a digest."""

    kind: ArtefactKind
    digest: Digest
    disposition: Disposition | None = None
    reason: Annotated[str, Field(max_length=2000)] = ""


class Count(Message):
    planned: Tally
    done: Tally


class Influence(Message):
    """A decision, not a model, that the leaver took part in and that still stands."""

    aspect: Aspect
    explanation: Sentence


class Workers(Message):
    """The erased clients' workers. Confirmed: has said that the erased samples are in its ledger and left out from
    then on. A whole client's worker is told to stop and confirms nothing."""

    confirmed: tuple[Commitment, ...] = ()
    unconfirmed: tuple[Commitment, ...] = ()


class AuditFigure(Message):
    """A measurement beside the same measurement of a reference, for instance of a model that never had the data."""

    name: Label
    value: float
    reference: float | None = None
    reference_is: Annotated[str, Field(max_length=500)] = ""


class Replayable(Message):
    """How many of the aggregation steps behind the subjects can be recomputed from stored updates."""

    extent: Literal["full", "partial", "none"]
    num_steps: Tally
    num_replayable: Tally

    @classmethod
    def of(cls, num_replayable: int, num_steps: int) -> Replayable:
        return cls(extent=extent_of(num_replayable, num_steps), num_steps=num_steps, num_replayable=num_replayable)


class Issuer(Message):
    coordinator_version: Label
    key_id: Digest = Field(description="Of the Ed25519 key that signs first: sha256 of its 32 public bytes.")


class ErasurePredicate(Message):
    """Every artefact is listed in the claim itself."""

    request: Request
    method: Method
    guarantee: Guarantee
    cohorts: tuple[CohortOutcome, ...]
    artefacts: tuple[Artefact, ...]
    counts: dict[ArtefactKind | Literal["cohort"], Count]
    still_shaped_by: tuple[Influence, ...]
    workers: Workers
    audit: tuple[AuditFigure, ...] = ()
    replayable: Replayable
    limits: Annotated[tuple[Sentence, ...], Field(min_length=1)]
    issuer: Issuer


class SubjectDigest(Message):
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Subject(Message):
    name: Label
    digest: SubjectDigest


class Statement(Message):
    type: Literal["https://in-toto.io/Statement/v1"] = Field(alias="_type")
    subject: tuple[Subject, ...]
    predicate_type: Literal["https://lethe.dev/attestation/erasure/v1"] = Field(alias="predicateType")
    predicate: ErasurePredicate

    @property
    def subjects(self) -> list[tuple[str, str]]:
        """(name, digest) of every model that was served when the certificate was issued."""
        return [(subject.name, f"sha256:{subject.digest.sha256}") for subject in self.subject]


def extent_of(num_replayed: int, num_steps: int) -> Literal["full", "partial", "none"]:
    """Zero of zero is none: nothing was shown."""
    if num_replayed == 0:
        return "none"
    return "full" if num_replayed == num_steps else "partial"
