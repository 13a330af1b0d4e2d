"""Requests to forget: what is asked for, what it would take, how far it is, and what a verifier needs."""

from __future__ import annotations

import base64
import binascii
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import AwareDatetime, Field, JsonValue, field_validator, model_validator

from services.audit.spec import AuditPlan
from services.incentive.spec import Amount
from services.wire.message import Id, Message, Name
from services.wire.v1.exclusions import SampleNumber
from services.wire.v1.people import Actor

Scope = Literal["client", "samples"]
Guarantee = Literal["exact", "approximate"]
Action = Literal["rolled-back", "re-initialised", "retired", "unlearned"]
ErasureStatus = Literal[
    "received",
    "awaiting_approval",
    "fenced",
    "executing",
    "verifying",
    "completed",
    "denied",
    "cancelled",
    "failed",
    "requires_action",
]
Ground = Literal["not_necessary", "withdrawal", "objection", "unlawful", "legal_obligation", "child", "other"]
"""Why somebody may ask to be forgotten: GDPR Art. 17(1) a to f, in the regulation's order."""
Sort = Literal["deadline", "-deadline", "created", "-created"]
DeliveryStatus = Literal["pending", "delivered", "failed"]
Fallback = Literal["retrain"]
"""What an approximate method may be replaced by when it does not hold."""
MOST_SAMPLES: Final = 100_000
"""In one request."""
LEAVER_READS_DAYS: Final = 90
"""How long after its erasure a client's token still reads its own request and certificate."""
LEGAL_DAYS: Final = 30
"""Days until the legal deadline when a request names none: the month of GDPR Art. 12(3)."""


Reason = Annotated[str, Field(min_length=1, max_length=2000)]
NoteText = Annotated[str, Field(min_length=1, max_length=4000)]
MethodName = Annotated[str, Field(pattern=r"^[a-z0-9_-]{1,40}$")]
Params = Annotated[dict[Annotated[str, Field(max_length=40)], JsonValue], Field(max_length=20)]


class RecoveryChoice(Message):
    """How a cohort makes up for what the erasure cost it."""

    method: MethodName = Field(default="plain", description="A recovery that `/v1/erasure/discovery` lists.")
    params: Params = Field(default_factory=dict, description="Of the method.", examples=[{"skewed_class": 8}])


class _Wanted(Message):
    """`federation_id` may be left out when the credential belongs to a federation."""

    federation_id: Id | None = None
    subjects: Annotated[list[Name], Field(min_length=1, max_length=1000)] = Field(
        description="Names of the clients to forget; a client's own credential may name itself only."
    )
    scope: Scope = Field(
        default="client",
        description="`client`: everything that these clients contributed. `samples`: what they contributed so far; "
        "they stay and leave the named samples out from now on.",
    )
    samples: dict[Name, Annotated[list[SampleNumber], Field(min_length=1, max_length=MOST_SAMPLES)]] = Field(
        default_factory=dict,
        description="With scope samples, for each subject: row numbers in its data source, from 0.",
        examples=[{"hospital-a": [3, 17, 20]}],
    )
    method: MethodName = Field(default="auto", description="`auto`, or a method that `/v1/erasure/discovery` lists.")
    params: Params = Field(
        default_factory=dict, description="Of the method; none with `auto`.", examples=[{"warmup_rounds": 5}]
    )
    guarantee: Guarantee = "exact"
    recovery_rounds: Annotated[int, Field(ge=0, le=10_000)] | None = Field(
        default=None,
        description="Rounds that a re-initialised cohort trains before the request counts as done; when absent, 5 in a "
        "completed run (or as many as it had) and none in one that goes on training anyway. With a `recovery` method: "
        "its rounds, after any method.",
    )
    recovery: Literal["training"] | RecoveryChoice = Field(
        default="training",
        description="What the unlearning method is followed by: the run's own training, or a recovery method.",
    )
    fallback: Fallback | None = Field(
        default=None,
        description="When an approximate method gives up or its audit fails: train again without the client. "
        "When absent the request requires action.",
    )
    audit: AuditPlan | None = Field(
        default=None, description="Have the leaver and some others score the result of an approximate method."
    )

    reward: Amount | None = Field(
        default=None,
        description="What each round of its work pays those who serve it, where the federation divides its clients "
        "among jobs; the federation's `incentives.pool` when absent.",
    )

    @model_validator(mode="after")
    def _only_approximate_methods_are_audited(self) -> _Wanted:
        if self.guarantee == "exact" and (self.audit is not None or self.fallback is not None):
            raise ValueError("audit and fallback belong to guarantee approximate")
        return self

    @model_validator(mode="after")
    def _samples_of_each_subject(self) -> _Wanted:
        if self.samples.keys() != (set(self.subjects) if self.scope == "samples" else set()):
            raise ValueError("samples names the samples of each subject with scope samples, and nothing without")
        if sum(map(len, self.samples.values())) > MOST_SAMPLES:
            raise ValueError(f"a request may name {MOST_SAMPLES} samples; file several")
        if any(len(set(samples)) != len(samples) for samples in self.samples.values()):
            raise ValueError("samples names a sample twice")
        return self

    @field_validator("subjects")
    @classmethod
    def _each_once(cls, subjects: list[str]) -> list[str]:
        if len(set(subjects)) != len(subjects):
            raise ValueError("subjects lists a name twice")
        return subjects


class ErasurePreviewRequest(_Wanted):
    """Like a request to forget; nothing is changed."""


class Callback(Message):
    """Where to post each change of the request. Signatures follow Standard Webhooks 1.0."""

    url: Annotated[str, Field(pattern=r"^https?://[^\s@#]+$", max_length=2000)] = Field(
        description="http or https; its host must be one that the coordinator's operator allows."
    )
    secret: Annotated[str, Field(pattern=r"^whsec_[A-Za-z0-9+/]{32,88}={0,2}$", max_length=100)] | None = Field(
        default=None,
        description="Signs with HMAC-SHA256 (`v1`): `whsec_` and the base64 of 24 to 64 random bytes. Without it the "
        "coordinator signs with the key that its certificates are signed with (`v1a`).",
    )

    @field_validator("secret")
    @classmethod
    def _is_base64(cls, secret: str | None) -> str | None:
        if secret is not None:
            secret_bytes(secret)
        return secret


def secret_bytes(secret: str) -> bytes:
    """The key that a secret stands for."""
    try:
        return base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except binascii.Error:
        raise ValueError("the secret is not whsec_ and base64") from None


class ErasureCreate(_Wanted):
    """A request to forget clients."""

    regulation: Annotated[str, Field(min_length=1, max_length=100)] = "GDPR Art. 17"
    legal_deadline: Annotated[AwareDatetime, Field(strict=False)] | None = Field(
        default=None, description=f"By when it must be done; {LEGAL_DAYS} days from now when absent."
    )
    ground: Ground | None = Field(default=None, description="Which of GDPR Art. 17(1) it rests on, or another.")
    external_ref: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        default=None, description="Its name elsewhere, like the number of a ticket."
    )
    note: NoteText | None = Field(default=None, description="The first note; those who decide read it.")
    needs_approval: bool = Field(
        default=False, description="Do nothing until it is approved; a federation may demand that of every request."
    )
    callbacks: Annotated[list[Callback], Field(max_length=10)] = Field(
        default=[], description="Where to post each change of the request's status, at least once."
    )


class ErasureApproval(Message):
    reason: Reason | None = None


class ErasureDenial(Message):
    reason: Reason


class ErasureExtend(Message):
    """One extension of the legal deadline, as GDPR Art. 12(3) knows it."""

    until: Annotated[AwareDatetime, Field(strict=False)] = Field(description="After the deadline that it has.")
    reason: Reason = Field(description="What the requester is told.")


class NoteCreate(Message):
    text: NoteText


class Note(Message):
    """What staff wrote about a request. It is unreadable once a client that it is about was erased."""

    id: Id
    at: datetime
    by: Actor | None = Field(description="Null if it cannot be read any more.")
    text: str | None = Field(description="Null if it cannot be read any more.")


class Extension(Message):
    until: datetime
    reason: str
    at: datetime
    by: Actor
    deadline_before: datetime


class ErasureLine(Message):
    """What the request does to one cohort, and how far that is."""

    run_id: Id
    run: Name
    cohort_id: Id
    cohort: str
    action: Action
    epoch_before: int
    epoch_after: int
    round_at_fence: int
    target_round: int = Field(description="The cohort is done when it serves this round again.")
    round_now: int
    audit: dict[str, Any] | None = Field(
        description="What the audit of an approximate method found. `verdict`: passed, failed or says-nothing (the "
        "model before the erasure would have passed as well); `checks`; `figures` of those who remain; `leavers`: for "
        "each by name its verdict, its figures, and the same figures of the model `before` the erasure."
    )
    clean_at: datetime | None = Field(description="When it first served a model without the client, or nothing.")
    done_at: datetime | None


class ErasureExclusion(Message):
    """With scope samples: whether the client's worker has them in its ledger."""

    client: Name
    num_samples: int
    ordered_at: datetime
    acknowledged_at: datetime | None
    problem: str | None = Field(description="Why its worker cannot leave them out.")


class ErasureRequest(Message):
    id: Id
    federation_id: Id
    status: ErasureStatus
    reason: str | None = Field(description="Why it is denied, cancelled, failed, or what action it requires.")
    version: int
    subjects: list[Name]
    scope: Scope
    method: str = Field(description="As asked for.")
    chosen: str | None = Field(
        description="The method that it is carried out with: settled at the fence, by the state of that moment."
    )
    params: dict[str, Any]
    guarantee: Guarantee
    regulation: str
    requested_by: str
    recovery_rounds: int | None
    recovery: RecoveryChoice | None = Field(description="Null: those who remain train on as they always do.")
    fallback: Fallback | None
    created_at: datetime
    legal_deadline: datetime
    days_left: int | None = Field(description="Whole days until the deadline, negative after it; null once it is over.")
    fenced_at: datetime | None = Field(description="Since then no model with the client in it is served or trained on.")
    first_clean_at: datetime | None = Field(description="When every touched cohort served a model without the client.")
    completed_at: datetime | None
    duplicate_of: Id | None = Field(description="The request that was already forgetting the same clients.")
    ground: Ground | None = None
    external_ref: str | None = Field(default=None, description="Its name elsewhere, like the number of a ticket.")
    filed_by: Actor | None = Field(default=None, description="Null where an older release did not record it.")
    needs_approval: bool = Field(default=False, description="Whether somebody had, or has, to approve it.")
    four_eyes: bool = Field(default=False, description="Whether that must be somebody else than who filed it.")
    decision: Literal["approved", "denied"] | None = None
    decided_by: Actor | None = None
    decided_at: datetime | None = None
    decision_reason: str | None = None
    approvable_by_me: bool = Field(default=False, description="Whether whoever reads this may decide it now.")
    extension: Extension | None = Field(default=None, description="Of the legal deadline.")
    lines: list[ErasureLine]
    exclusions: list[ErasureExclusion] = Field(description="With scope samples, from the fence on: one per client.")


class PreviewedCohort(Message):
    run_id: Id
    run: Name
    cohort: str
    action: Action
    rounds_to_redo: int
    recovery_rounds: int = Field(description="Those of the rounds that are of the recovery.")
    client_updates_to_redo: int


class ErasureOption(Message):
    """One method, and what it would take. Figures are estimates from the history of the runs; a method that does not
    apply has none."""

    method: str
    guarantee: Guarantee
    applies: bool
    why_not: str | None = Field(description="Why it does not apply.")
    cohorts: list[PreviewedCohort] = Field(
        description="Those that are fenced; the others are not touched. None where the method does not apply."
    )
    num_cohorts_untouched: int | None = Field(description="Null where the method does not apply.")
    rounds_to_redo: int | None = Field(description="Null where the method does not apply.")
    client_updates_to_redo: int | None = Field(description="Null where the method does not apply.")
    client_work: float | None = Field(
        description="Of all clients, in updates of the run's own training: what the methods add at the clients is "
        "counted. Null where the method does not apply."
    )
    profiles_to_make: int | None = Field(
        default=None,
        description="Clients that first train one epoch, so that a selection policy knows them; null where the method "
        "does not apply.",
    )
    bytes_to_move: int | None = Field(
        description="Models to the clients and updates back; null where the method does not apply."
    )
    estimated_seconds: float | None = Field(
        description="Of the slowest cohort, as they train side by side; null where nothing was measured yet."
    )
    initial_accuracy: float | None = Field(
        description="The lowest judged accuracy of the models that cohorts go on from; null unless all are known."
    )


class ErasurePreview(Message):
    subjects: list[Name]
    options: list[ErasureOption]
    chosen: str = Field(description="The method that a request with the same body would use.")
    recovery: str = Field(description="The recovery that follows, which the figures count.")
    needs_approval: bool = Field(
        default=False, description="Whether the federation demands that somebody else approves such a request."
    )


class ErasureCount(Message):
    """How many requests there are among those that the filters let through."""

    total: int
    by_status: dict[ErasureStatus, int] = Field(description="Statuses that no request has are left out.")
    awaiting_my_approval: int
    overdue: int = Field(description="Past their legal deadline, and not over.")
    due_within_7_days: int = Field(description="Not over, with the deadline in the next seven days.")


class ErasureEvent(Message):
    seq: int
    erasure_id: Id
    at: datetime
    type: str
    data: dict[str, Any]


class ErasureDelivery(Message):
    """One change of a request, on its way to one callback."""

    id: Id = Field(description="The `webhook-id` header: the same in every attempt.")
    erasure_id: Id
    url: str
    type: str = Field(description="Like `erasure.fenced`.")
    seq: int = Field(description="Changes of the request are numbered from 1; attempts may arrive in another order.")
    status: DeliveryStatus
    attempts: int
    created_at: datetime
    next_attempt_at: datetime | None
    delivered_at: datetime | None
    error: str | None = Field(description="What became of the last attempt that failed.")


class MethodDescription(Message):
    name: str
    guarantee: Guarantee
    summary: str
    granularity: Scope = Field(description="The smallest thing it can forget.")
    needs: list[str] = Field(
        description="sub-cohorts, leaver (its worker takes part), remaining (others train), history (stored updates), "
        "residuals, distances. Whether a run has them, the preview says."
    )
    params: dict[str, Any] = Field(description="JSON schema of its parameters.")
    package: str | None = Field(default=None, description="The package that it comes with, and its version.")


class RecoveryDescription(Message):
    name: str
    summary: str
    rounds: int = Field(description="When a request does not say; 0: as many as the unlearning method has.")
    needs_class: bool = Field(description="It is about one class, which its parameters name or the server finds.")
    params: dict[str, Any] = Field(description="JSON schema of its parameters.")
    package: str | None = Field(default=None, description="The package that it comes with, and its version.")


class Discovery(Message):
    """What this coordinator can forget, how, and the key that its certificates are signed with."""

    scopes: list[Scope]
    methods: list[MethodDescription]
    recoveries: list[RecoveryDescription]
    public_key: str = Field(
        description="Ed25519, as PEM (SubjectPublicKeyInfo): the key that signs now, then those that signed before it."
    )
    key_id: str = Field(description="By which certificates name it: sha256 of its 32 bytes.")
    legal_deadline_days: int = Field(description="Granted when a request names no deadline.")
