"""Parameters of FedEraser."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue, model_validator

from services.selection.spec import SelectionSpec
from services.wire.message import Message


class FedEraser(Message):
    method: Literal["federaser"] = "federaser"
    interval: Annotated[int, Field(ge=1, le=10_000)] = Field(
        default=1, description="Δt: walk through every n-th round of the history; its first round always."
    )
    calibration_ratio: Annotated[float, Field(gt=0, le=1)] = Field(
        default=0.5, description="r: clients calibrate for ⌈r·E⌉ epochs, E being those of ordinary training."
    )
    participants: Literal["original", "policy"] = Field(
        default="original",
        description="Who calibrates a round: those who took part in it, or as many as the run's selection draws.",
    )
    selection: str | dict[str, JsonValue] | None = Field(
        default=None,
        description="With `participants: policy`: the policy that draws them, by name or with its parameters; the "
        "run's own when absent.",
    )
    quorum: Annotated[float, Field(gt=0, le=1)] = Field(
        default=0.5, description="A round with answers from less than this share of those asked is skipped and counted."
    )
    deadline_s: Annotated[float, Field(gt=0, le=30 * 86400)] = Field(
        default=600.0, description="How long a round waits for those who are asked."
    )
    max_skipped: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.5, description="Give up when more than this share of the rounds had to be skipped."
    )

    @model_validator(mode="after")
    def _selection_is_known(self) -> FedEraser:
        if self.selection is not None and self.participants == "original":
            raise ValueError("selection draws clients only with participants: policy")
        self.policy()
        return self

    def policy(self) -> SelectionSpec | None:
        """The policy that the request names. Policies are methods like this one, hence looked up when it is asked."""
        from services.methods.catalogue import SELECTION

        if self.selection is None:
            return None
        name = self.selection if isinstance(self.selection, str) else self.selection.get("policy")
        if not isinstance(name, str) or name not in SELECTION:
            raise ValueError(f"selection: there is no policy {name!r}; there are {', '.join(SELECTION)}")
        given = {} if isinstance(self.selection, str) else self.selection
        return SELECTION[name].spec.model_validate(given)
