"""The class that an erasure cost most, found before a recovery begins that is about one class.

The server compares the accuracy on each class of its own validation set, of the model from before with the one that the
recovery begins with. Clients are told the number of the class and nothing else.
"""

from __future__ import annotations

from typing import Literal

from services.core.errors import InvariantBroken
from services.program.contract import CohortView, Compute, Computed, Finish, Outcome, Step
from services.training.rounds import EVALUATION_BATCH
from services.wire.message import Message


class FindClassState(Message):
    phase: Literal["comparing", "finished"]


class FindClassProgram:
    """It ends with the figures of the kernel, which the engine reads: `skewed_class`, `accuracy_before` and
    `accuracy_after`; the first is missing where no class lost anything."""

    state_type = FindClassState

    def start(self, view: CohortView) -> tuple[FindClassState, Step]:
        before, after, data = view.compared_with, view.head, view.spec.validation.data
        if before is None or after is None or data is None:
            raise InvariantBroken(f"cohort {view.name} has nothing to compare, or no validation set to compare it on")
        params = {
            "model": view.spec.model.model_dump(),
            "before": before,
            "after": after,
            "data": data,
            "batch_size": EVALUATION_BATCH,
        }
        return FindClassState(phase="comparing"), Compute("find_class", params, (before, after, data))

    def resume(self, state: FindClassState, outcome: Outcome, view: CohortView) -> tuple[FindClassState, Step]:
        if not isinstance(outcome, Computed):
            raise InvariantBroken(f"comparing classes cannot take {type(outcome).__name__}")
        found = outcome.figures.get("skewed_class")
        lost = outcome.figures.get("accuracy_before", 0.0) - outcome.figures.get("accuracy_after", 0.0)
        reason = f"class {found:.0f} lost {lost:.4f} of its accuracy" if found is not None else "no class lost accuracy"
        return FindClassState(phase="finished"), Finish(reason, figures=outcome.figures)
