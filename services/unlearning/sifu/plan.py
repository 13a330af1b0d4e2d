"""Server decisions of SIFU: go back to the newest stored model with Ψ ≤ Ψ*, add noise, publish; training goes on from
that model's round. The initial model has Ψ = 0, so there is always one."""

from __future__ import annotations

from typing import Literal

from services.core.errors import InvariantBroken
from services.program.contract import CohortView, Compute, Computed, Finish, Outcome, Publish, Published, Step
from services.unlearning.sifu.bound import hidden_by_noise, movement_by_round
from services.unlearning.sifu.spec import Sifu
from services.unlearning.steps import erasure_of
from services.wire.message import Message


class SifuState(Message):
    phase: Literal["adding-noise", "publishing", "finished"]
    round: int
    """The round of the model that is gone back to."""
    psi: float
    psi_star: float


class SifuProgram:
    state_type = SifuState

    def start(self, view: CohortView) -> tuple[SifuState, Step]:
        erasure = erasure_of(view)
        spec = Sifu.model_validate(dict(erasure.params))
        psi_star = hidden_by_noise(spec.epsilon, spec.delta, spec.noise)
        bounds = movement_by_round(erasure.movements, erasure.round, spec.contraction)
        models = {0: erasure.initial, **erasure.checkpoints}
        round = max(round for round in models if round <= erasure.round and bounds[round] <= psi_star)
        params = {"model": models[round], "noise": spec.noise, "seed": erasure.seed}
        state = SifuState(phase="adding-noise", round=round, psi=bounds[round], psi_star=psi_star)
        return state, Compute("add_gaussian_noise", params, (models[round],))

    def resume(self, state: SifuState, outcome: Outcome, view: CohortView) -> tuple[SifuState, Step]:
        match state.phase, outcome:
            case "adding-noise", Computed(digest=str(digest), figures=figures):
                metrics = {**figures, "psi": state.psi, "psi_star": state.psi_star}
                after = state.model_copy(update={"phase": "publishing"})
                return after, Publish(digest, state.round, "forgotten", metrics=metrics)
            case "publishing", Published():
                reason = (
                    f"back at round {state.round}: Ψ {state.psi:.4g} is at most Ψ* {state.psi_star:.4g} (heuristic)"
                )
                return state.model_copy(update={"phase": "finished"}), Finish(reason)
        raise InvariantBroken(f"SIFU in phase {state.phase} cannot take {type(outcome).__name__}")
