"""Server decisions of PGA: take the leavers' last updates out of the head, let each leaver climb inside a ball around
the result, publish where they end. The recovery that follows is ordinary training by the others."""

from __future__ import annotations

import math
from typing import Literal

from services.core.errors import InvariantBroken
from services.core.seeds import derive
from services.models.spec import CUSTOM, params_of
from services.program.contract import (
    Abort,
    AskClients,
    CohortView,
    Collected,
    Compute,
    Computed,
    Finish,
    LeaverTask,
    Outcome,
    Publish,
    Published,
    Step,
)
from services.unlearning.pga.spec import NUM_RANDOM_MODELS, Ascend, Pga
from services.unlearning.steps import erasure_of, returned, weighted_step
from services.wire.message import Message

SHOWN = ("forgotten_accuracy", "distance", "num_steps", "diverged")


class PgaState(Message):
    phase: Literal["referring", "measuring", "asking", "aggregating", "publishing", "finished", "failed"]
    reference: str | None = None
    figures: dict[str, float] = {}


class PgaProgram:
    state_type = PgaState

    def start(self, view: CohortView) -> tuple[PgaState, Step]:
        erasure, spec = erasure_of(view), _spec(view)
        state = PgaState(phase="referring")
        if view.spec.model.name == CUSTOM and (spec.radius is None or spec.stop_accuracy is None):
            return _fail(state, "model custom is known to the workers only: give radius and stop_accuracy")
        taken = [p for p in erasure.participants if p.client in erasure.leavers]
        if not taken:
            return _measure(state.model_copy(update={"reference": erasure.head}), view)
        if erasure.base is None or any(p.digest is None for p in taken):
            return _fail(state, "the leaver's last update, or the model it started from, is no longer stored")
        leavers = [{"digest": p.digest, "share": p.share} for p in taken]
        params = {"head": erasure.head, "base": erasure.base, "scale": erasure.scale, "leavers": leavers}
        inputs = (erasure.head, erasure.base, *(p.digest for p in taken if p.digest is not None))
        return state, Compute("pga_reference", params, inputs)

    def resume(self, state: PgaState, outcome: Outcome, view: CohortView) -> tuple[PgaState, Step]:
        match state.phase, outcome:
            case "referring", Computed(digest=str(digest), figures=figures):
                return _measure(state.model_copy(update={"reference": digest, "figures": dict(figures)}), view)
            case "measuring", Computed(figures=figures):
                return _ask(state, figures["radius"], view)
            case "asking", Collected():
                return _collected(state, outcome, view)
            case "aggregating", Computed(digest=str(digest)):
                step = Publish(digest, erasure_of(view).round + 1, "forgotten", metrics=state.figures)
                return state.model_copy(update={"phase": "publishing"}), step
            case "publishing", Published():
                reason = "the leavers climbed away from their data; training by the others mends the rest"
                return state.model_copy(update={"phase": "finished"}), Finish(reason)
        raise InvariantBroken(f"PGA in phase {state.phase} cannot take {type(outcome).__name__}")


def _measure(state: PgaState, view: CohortView) -> tuple[PgaState, Step]:
    spec, reference = _spec(view), _reference(state)
    if spec.radius is not None:
        return _ask(state, spec.radius, view)
    seeds = [derive(view.spec.seed, "pga", index) for index in range(NUM_RANDOM_MODELS)]
    params = {"model": view.spec.model.model_dump(), "reference": reference, "seeds": seeds}
    return state.model_copy(update={"phase": "measuring"}), Compute("pga_radius", params, (reference,))


def _ask(state: PgaState, radius: float, view: CohortView) -> tuple[PgaState, Step]:
    erasure, spec = erasure_of(view), _spec(view)
    chance = spec.stop_accuracy if spec.stop_accuracy is not None else 1 / params_of(view.spec.model).num_classes
    given = spec.model_dump(exclude={"method", "radius", "stop_accuracy", "deadline_s"})
    work = Ascend(radius=radius, stop_accuracy=chance, **given)
    ask = AskClients(
        "ascend",
        erasure.round + 1,
        _reference(state),
        num_clients=0,
        quorum=len(erasure.leavers),
        deadline_s=spec.deadline_s,
        leavers=tuple(LeaverTask(client, "ascend", work) for client in erasure.leavers),
        close_at_deadline=True,
    )
    return state.model_copy(update={"phase": "asking", "figures": {**state.figures, "radius": radius}}), ask


def _collected(state: PgaState, collected: Collected, view: CohortView) -> tuple[PgaState, Step]:
    """All leavers or none: a leaver that did not climb would still be in the model."""
    leavers = erasure_of(view).leavers
    answers = returned(collected.updates, leavers)
    missing = sorted(set(leavers) - {update.client for update, _ in answers})
    if missing:
        return _fail(state, f"no usable answer from {', '.join(missing)}: the leaver must be online and not diverge")
    figures = dict(state.figures)
    for name in SHOWN:
        values = [update.metrics[name] for update, _ in answers if name in update.metrics]
        if values and all(map(math.isfinite, values)):
            figures[name] = max(values)
    updates = [(digest, float(update.num_samples)) for update, digest in answers]
    after = state.model_copy(update={"phase": "aggregating", "figures": figures})
    return after, weighted_step(_reference(state), updates)


def _reference(state: PgaState) -> str:
    if state.reference is None:
        raise InvariantBroken("PGA asks before it has a reference")
    return state.reference


def _fail(state: PgaState, reason: str) -> tuple[PgaState, Step]:
    return state.model_copy(update={"phase": "failed"}), Abort(f"{reason}; or use NoT or retrain")


def _spec(view: CohortView) -> Pga:
    return Pga.model_validate(dict(erasure_of(view).params))
