"""Parameters of FedForget and of the work that its leaver is given."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field, model_validator

from services.methods.description import TaskParameters
from services.training.local_spec import LocalTraining
from services.wire.message import Digest, Message

PRESETS: Final[dict[str, dict[str, Any]]] = {
    "default": {},
    "paper": {
        "teacher": "global",
        "teacher_b": True,
        "alpha": 0.93,
        "lambda_neg": 3.5,
        "lambda_0": 2.0,
        "rounds": 10,
        "epochs": 2,
        "batch_size": 64,
        "learning_rate": 0.01,
        "clip_norm": 1.0,
    },
}


class _Distillation(Message):
    """The leaver's loss; part of the request and of its task."""

    alpha: Annotated[float, Field(ge=0, le=1)] = Field(default=0.95, description="Share of keeping against forgetting.")
    lambda_neg: Annotated[float, Field(ge=0, le=100)] = Field(default=3.0, description="Strength of forgetting.")
    temperature: Annotated[float, Field(gt=0, le=100)] = 2.0
    teacher: Literal["quasi_competent", "global"] = Field(
        default="quasi_competent",
        description="Teacher A: the model before, as it is (global), or with the right answer's logit put last.",
    )


class FedForget(_Distillation):
    method: Literal["fedforget"] = "fedforget"
    preset: Literal["default", "paper"] = Field(default="default", description="Where unnamed parameters come from.")
    teacher_b: bool = Field(
        default=False, description="Push away from the leaver's own model; without it, from the right answers (ascent)."
    )
    rounds: Annotated[int, Field(ge=1, le=1000)] = 3
    early_stop: bool = Field(
        default=False,
        description="End once the leaver's accuracy on its own data is at most that on validation.data. Not for "
        "lopsided shares, which may be answered worse than that from the start.",
    )
    lambda_0: Annotated[float, Field(ge=1, le=100)] = Field(
        default=10.0, description="The leaver's weight in the first round is multiplied by this; it decays towards 1."
    )
    max_share: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=0.5, description="The leavers' weights never exceed this share of a round."
    )
    clip_norm: Annotated[float, Field(gt=0, le=1e12)] = 5.0
    epochs: Annotated[int, Field(ge=1, le=1000)] | None = Field(default=None, description="When absent, the run's own.")
    batch_size: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(default=None, description="Likewise.")
    learning_rate: Annotated[float, Field(gt=0, le=100)] | None = Field(default=None, description="Likewise.")
    max_missed: Annotated[int, Field(ge=0, le=1000)] = Field(
        default=3, description="Rounds in which a leaver may fail to answer before the method gives up."
    )
    deadline_s: Annotated[float, Field(gt=0, le=30 * 86400)] = Field(
        default=3600.0, description="How long a round waits for those who are asked."
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_from_preset(cls, given: Any) -> Any:
        if isinstance(given, dict) and isinstance(preset := given.get("preset"), str) and preset in PRESETS:
            return {**PRESETS[preset], **given}
        return given

    def local(self, own: LocalTraining) -> LocalTraining:
        """How the leaver trains: as the run does, but for what the request names, and clipped."""
        named = self.model_dump(include={"epochs", "batch_size", "learning_rate", "clip_norm"}, exclude_none=True)
        return own.model_copy(update=named)


class Distil(_Distillation, TaskParameters):
    """The leaver's task: learn from teacher A, and away from teacher B (or from the right answers)."""

    kind: Literal["distil"] = "distil"
    local: LocalTraining
    teacher_a: Digest
    teacher_b: Digest | None = None

    def blobs(self) -> tuple[str, ...]:
        """Digests that the task needs besides its model."""
        return (self.teacher_a,) if self.teacher_b is None else (self.teacher_a, self.teacher_b)
