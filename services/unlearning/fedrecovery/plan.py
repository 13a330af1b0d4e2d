"""Server decisions of FedRecovery: one kernel over the head and the running residuals, then publish. Nobody is asked.

Afterwards the cohort's residuals are dropped: everybody's contain the leaver's updates.
"""

from __future__ import annotations

from typing import Literal

from services.core.errors import InvariantBroken
from services.program.contract import Abort, CohortView, Compute, Computed, Finish, Outcome, Publish, Published, Step
from services.unlearning.fedrecovery.spec import FedRecovery
from services.unlearning.steps import erasure_of
from services.wire.message import Message


class FedRecoveryState(Message):
    phase: Literal["removing", "publishing", "finished", "failed"]


class FedRecoveryProgram:
    state_type = FedRecoveryState

    def start(self, view: CohortView) -> tuple[FedRecoveryState, Step]:
        erasure = erasure_of(view)
        spec = FedRecovery.model_validate(dict(erasure.params))
        if erasure.residuals is None:
            reason = "the cohort keeps no residuals, or lost them in an earlier erasure and has not trained since"
            return FedRecoveryState(phase="failed"), Abort(f"{reason}; use another method")
        params = {
            "head": erasure.head,
            "residuals": erasure.residuals,
            "leavers": list(erasure.leavers),
            "noise": spec.noise,
            "seed": erasure.seed,
        }
        step = Compute("remove_residuals", params, (erasure.head, erasure.residuals))
        return FedRecoveryState(phase="removing"), step

    def resume(self, state: FedRecoveryState, outcome: Outcome, view: CohortView) -> tuple[FedRecoveryState, Step]:
        match state.phase, outcome:
            case "removing", Computed(digest=str(digest), figures=figures):
                step = Publish(digest, erasure_of(view).round, "forgotten", metrics=figures)
                return FedRecoveryState(phase="publishing"), step
            case "publishing", Published():
                return FedRecoveryState(phase="finished"), Finish("the leavers' residuals are subtracted")
        raise InvariantBroken(f"FedRecovery in phase {state.phase} cannot take {type(outcome).__name__}")
