"""Server decisions of FUDP: ask those who remain how well each channel tells the class apart, prune the best, publish.
The recovery that follows is training by those who remain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import ValidationError

from services.core.errors import InvariantBroken
from services.models.spec import CUSTOM, ImageParams, params_of
from services.program.contract import (
    Abort,
    AskClients,
    CohortView,
    Collected,
    Compute,
    Computed,
    Contribution,
    Finish,
    Outcome,
    Publish,
    Published,
    Step,
    UpdateRef,
)
from services.unlearning.fudp.spec import Fudp, RateChannels
from services.unlearning.steps import erasure_of
from services.wire.message import Id, Message
from services.wire.v1.runs import ModelSpec


class Rating(Message):
    """A client's scores: the update that they came as, and how many samples of the class they were measured on."""

    update_id: Id
    client: str
    weight: float


class FudpState(Message):
    phase: Literal["asking", "pruning", "publishing", "finished", "failed"]
    ratings: list[Rating] = []


class FudpProgram:
    state_type = FudpState

    def start(self, view: CohortView) -> tuple[FudpState, Step]:
        erasure, spec = erasure_of(view), _spec(view)
        ask = AskClients(
            "rate_channels",
            erasure.round + 1,
            erasure.head,
            view.num_members,
            quorum=view.num_members,
            deadline_s=spec.deadline_s,
            work=RateChannels(forget_class=spec.forget_class),
            close_at_deadline=True,
        )
        return FudpState(phase="asking"), ask

    def resume(self, state: FudpState, outcome: Outcome, view: CohortView) -> tuple[FudpState, Step]:
        match state.phase, outcome:
            case "asking", Collected(updates=updates):
                return _prune(updates, view)
            case "pruning", Computed(digest=str(digest), figures=figures):
                contributions = tuple(Contribution(r.update_id, r.client, r.weight, 0) for r in state.ratings)
                step = Publish(digest, erasure_of(view).round + 1, "forgotten", contributions, metrics=figures)
                return state.model_copy(update={"phase": "publishing"}), step
            case "publishing", Published():
                reason = f"the channels that tell class {_spec(view).forget_class} apart are pruned"
                return state.model_copy(update={"phase": "finished"}), Finish(f"{reason}; training mends the rest")
        raise InvariantBroken(f"FUDP in phase {state.phase} cannot take {type(outcome).__name__}")


def objection(params: Mapping[str, Any], model: ModelSpec) -> str | None:
    """Why this model cannot forget the class that the parameters name."""
    try:
        spec = Fudp.model_validate(dict(params))
    except ValidationError:
        return "it forgets one class: name it in params.forget_class"
    if model.name == CUSTOM:
        return None  # known to the workers only
    built_in = params_of(model)
    if not isinstance(built_in, ImageParams):
        return f"it prunes channels of convolutions, and model {model.name} has none"
    if spec.forget_class >= built_in.num_classes:
        return f"there is no class {spec.forget_class}: the model's classes are 0 to {built_in.num_classes - 1}"
    return None


def _prune(updates: Sequence[UpdateRef], view: CohortView) -> tuple[FudpState, Step]:
    """Prune by the scores of clients that have samples of the class, weighted by their number."""
    erasure, spec = erasure_of(view), _spec(view)
    rated = [(u, u.digest, min(u.metrics.get("class_samples", 0.0), float(u.num_samples))) for u in updates]
    found = [(update, digest, weight) for update, digest, weight in rated if digest is not None and weight > 0]
    if not found:
        reason = f"no client that remains could rate the channels by samples of class {spec.forget_class}"
        return FudpState(phase="failed"), Abort(f"{reason}; use NoT or retrain")
    params = {
        "model": erasure.head,
        "scores": [{"digest": digest, "weight": weight} for _, digest, weight in found],
        "ratio": spec.ratio,
    }
    ratings = [Rating(update_id=u.update_id, client=u.client, weight=weight) for u, _, weight in found]
    inputs = (erasure.head, *(digest for _, digest, _ in found))
    return FudpState(phase="pruning", ratings=ratings), Compute("prune_channels", params, inputs)


def _spec(view: CohortView) -> Fudp:
    return Fudp.model_validate(dict(erasure_of(view).params))
