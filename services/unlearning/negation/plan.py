"""Server decisions of NoT: negate, publish. The recovery that follows is ordinary training by those who remain."""

from __future__ import annotations

from typing import Literal

from services.core.errors import InvariantBroken
from services.program.contract import CohortView, Compute, Computed, Finish, Outcome, Publish, Published, Step
from services.unlearning.negation.spec import Negation
from services.unlearning.steps import erasure_of
from services.wire.message import Message


class NegationState(Message):
    phase: Literal["negating", "publishing", "finished"]


class NegationProgram:
    state_type = NegationState

    def start(self, view: CohortView) -> tuple[NegationState, Step]:
        erasure = erasure_of(view)
        spec = Negation.model_validate(dict(erasure.params))
        params = {"model": erasure.head, "layers": spec.layers}
        return NegationState(phase="negating"), Compute("negate_layers", params, (erasure.head,))

    def resume(self, state: NegationState, outcome: Outcome, view: CohortView) -> tuple[NegationState, Step]:
        match state.phase, outcome:
            case "negating", Computed(digest=str(digest), figures=figures):
                step = Publish(digest, erasure_of(view).round, "forgotten", metrics=figures)
                return NegationState(phase="publishing"), step
            case "publishing", Published():
                return NegationState(phase="finished"), Finish("the first layer is negated; training mends the rest")
        raise InvariantBroken(f"NoT in phase {state.phase} cannot take {type(outcome).__name__}")
