"""What an audit is asked for: canaries registered at joining, the task that clients run, thresholds of a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from services.methods.description import TaskParameters
from services.training.local_spec import LocalTraining
from services.wire.message import Digest, Message, Reply

WITHDRAWN: Final = ("max_relative_distance", "max_output_divergence")
"""Thresholds that requests could once name; their figures were never computed."""
BEFORE: Final = "before_"
"""Begins the names of a leaver's figures of the model before the erasure."""
SHADOW_ROUNDS: Final = 5
"""The number among one, three, five and eight that told members from strangers best on MNIST and Fashion-MNIST."""
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


class Audit(TaskParameters, Reply):
    """A client's audit task: scores of the model it is given on the client's own data, and nothing else."""

    kind: Literal["audit"] = "audit"
    role: Literal["leaver", "remaining"]
    before: Digest | None = Field(
        default=None,
        description="The model before the erasure: the same scores of it say what the audit is able to see.",
    )
    num_shadows: Annotated[int, Field(ge=0, le=64)] = Field(
        default=0, description="Shadow models for the likelihood-ratio attack; 0 leaves that attack out."
    )
    shadow_training: LocalTraining = Field(
        default=LocalTraining(epochs=20), description="Of a shadow in each of its rounds: the run's own."
    )
    shadow_start: Digest | None = Field(default=None, description="Model of the run's line that shadows start from.")
    shadow_rounds: Annotated[int, Field(ge=1, le=1000)] = 1
    shadow_share: Annotated[float, Field(gt=0, le=1)] = Field(
        default=1.0, description="How much of its training goes into a shadow in each round: one client's part of many."
    )
    canary: Canary | None = None

    def blobs(self) -> tuple[str, ...]:
        """Digests that the task needs besides its model."""
        return tuple(digest for digest in (self.before, self.shadow_start) if digest is not None)


class Thresholds(Message):
    """What an erasure has to show. Each is checked for every leaver by itself when it is given; at least one must be.

    A check that the model before the erasure would have passed as well says nothing, and alone does not pass. A gap is
    two-sided and counted from the band of the retrained references: forgetting too much is a signal, too.
    """

    max_mia_gap: Share | None = Field(default=None, description="Of mia_auc to the references.")
    max_likelihood_gap: Share | None = Field(default=None, description="Of likelihood_auc to the references.")
    max_forgotten_accuracy_gap: Share | None = Field(default=None, description="Of forgotten_accuracy.")
    max_remaining_accuracy_drop: Share | None = Field(default=None, description="One-sided, below the references.")
    max_backdoor_success: Share | None = Field(
        default=None, description="Of backdoor_success_rate, above chance (1 / number of classes)."
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


def read_plan(stored: Mapping[str, Any]) -> tuple[AuditPlan, list[str]]:
    """A request's plan as it was filed, perhaps by an earlier release; and the thresholds that it sets and that cannot
    be judged any more."""
    thresholds = dict(stored["thresholds"])
    withdrawn = [name for name in WITHDRAWN if thresholds.pop(name, None) is not None]
    return AuditPlan.model_validate({**stored, "thresholds": thresholds}), withdrawn
