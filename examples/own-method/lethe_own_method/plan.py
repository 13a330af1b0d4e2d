"""Decisions of the server: one kernel over the head and the leavers' last updates, then publish. No torch here."""

from __future__ import annotations

from typing import Literal

from lethe_own_method.spec import ScaleOut
from services.core.errors import InvariantBroken
from services.program.contract import Abort, CohortView, Compute, Computed, Finish, Outcome, Publish, Published, Step
from services.unlearning.steps import erasure_of
from services.wire.message import Message


class ScaleOutState(Message):
    """Stored after every step, so that a coordinator that was killed goes on from here."""

    phase: Literal["scaling", "publishing", "finished", "failed"]


class ScaleOutProgram:
    state_type = ScaleOutState

    def start(self, view: CohortView) -> tuple[ScaleOutState, Step]:
        erasure = erasure_of(view)
        factor = ScaleOut.model_validate(dict(erasure.params)).factor
        updates = [
            {"digest": one.digest, "weight": factor * erasure.scale * one.share}
            for one in erasure.participants
            if one.digest is not None
        ]
        if not updates:
            return ScaleOutState(phase="failed"), Abort("no update of the leaver is stored that is in the newest model")
        inputs = (erasure.head, *(str(one["digest"]) for one in updates))
        return ScaleOutState(phase="scaling"), Compute(
            "scale_out_updates", {"model": erasure.head, "updates": updates}, inputs
        )

    def resume(self, state: ScaleOutState, outcome: Outcome, view: CohortView) -> tuple[ScaleOutState, Step]:
        match state.phase, outcome:
            case "scaling", Computed(digest=str(digest), figures=figures):
                publish = Publish(digest, erasure_of(view).round, "forgotten", metrics=figures)
                return ScaleOutState(phase="publishing"), publish
            case "publishing", Published():
                return ScaleOutState(phase="finished"), Finish("the leavers' last updates are taken out")
        raise InvariantBroken(f"scale_out in phase {state.phase} cannot take {type(outcome).__name__}")
