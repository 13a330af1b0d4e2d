"""What an audit is asked for: canaries registered at joining, the task that clients run, thresholds of a request."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from services.training.local_spec import LocalTraining
from services.wire.message import Digest, Message

Share = Annotated[float, Field(ge=0, le=1)]


class Canary(Message):
    """A backdoor that a client agrees to carry, so that its presence in a model can be seen without its data."""

    target_class: Annotated[int, Field(ge=0, le=65_535)]
    size: Annotated[int, Field(ge=1, le=64)] = Field(
        default=3, description="Side of the square patch in an image; number of features set in a table."
    )
    share: Annotated[float, Field(gt=0, le=1)] = Field(
        default=0.2, description="Share of the client's training samples of other classes that are stamped."
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(
        description="Place and pattern of the trigger; give each client another one."
    )


class Audit(Message):
    """A client's audit task: scores of the model it is given on the client's own data, and nothing else."""

    kind: Literal["audit"] = "audit"
    role: Literal["leaver", "remaining"]
    num_shadows: Annotated[int, Field(ge=0, le=64)] = Field(
        default=0, description="Shadow models for the likelihood-ratio attack; 0 leaves that attack out."
    )
    shadow_training: LocalTraining = LocalTraining(epochs=20)
    shadow_start: Digest | None = Field(default=None, description="Model that shadows start from: the initial one.")
    canary: Canary | None = None

    def blobs(self) -> tuple[str, ...]:
        """Digests that the task needs besides its model."""
        return () if self.shadow_start is None else (self.shadow_start,)


class Thresholds(Message):
    """What an erasure has to show. Each is checked when it is given; at least one must be.

    A gap is two-sided and counted from the band of the retrained references: forgetting too much is a signal, too.
    """

    max_mia_gap: Share | None = Field(default=None, description="Of mia_auc to the references.")
    max_likelihood_gap: Share | None = Field(default=None, description="Of likelihood_auc to the references.")
    max_forgotten_accuracy_gap: Share | None = Field(default=None, description="Of forgotten_accuracy.")
    max_remaining_accuracy_drop: Share | None = Field(default=None, description="One-sided, below the references.")
    max_backdoor_success: Share | None = Field(
        default=None, description="Of backdoor_success_rate, above chance (1 / number of classes)."
    )
    max_relative_distance: Annotated[float, Field(ge=0)] | None = Field(
        default=None, description="Of the parameters to a retrained model, relative to that model's norm."
    )
    max_output_divergence: Annotated[float, Field(ge=0)] | None = Field(
        default=None, description="Mean Jensen-Shannon divergence of the outputs to a retrained model's, in nats."
    )
    min_samples: Annotated[int, Field(ge=1, le=10**9)] = Field(
        default=20, description="A score made of fewer samples fails."
    )


class AuditPlan(Message):
    """What an approximate erasure has to show before it counts as done."""

    thresholds: Thresholds
    references: Annotated[list[dict[str, float]], Field(max_length=20)] = Field(
        default=[],
        description="The same figures of models that never had the data; gaps are counted from these.",
    )
    num_classes: Annotated[int, Field(ge=2, le=65_536)] | None = Field(
        default=None,
        description="Gives chance for max_backdoor_success; when absent the model's. For model custom it is then 0.",
    )
    num_shadows: Annotated[int, Field(ge=0, le=64)] = 0
    canary: Canary | None = Field(
        default=None, description="That the leaver carried; the one that was registered for it when absent."
    )
    deadline_s: Annotated[float, Field(gt=0, le=30 * 86400)] = Field(
        default=600.0, description="How long to wait for the scores; what is missing then fails."
    )

    def work(self, role: Literal["leaver", "remaining"]) -> Audit:
        if role == "remaining":
            return Audit(role=role)
        return Audit(role=role, num_shadows=self.num_shadows, canary=self.canary)
