"""Server decisions of FedForget: rounds in which the leavers distil and the others train, all from the same model.

    λ_f(t) = 1 + (λ_0 − 1)·e^{−βt},  β = ln(10) / R,  t = 0 in the first round

multiplies the leavers' sample counts; their share of a round is capped. A round without every leaver is void.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from services.core.errors import InvariantBroken
from services.program.contract import (
    Abort,
    AskClients,
    CohortView,
    Collected,
    Compute,
    Computed,
    Contribution,
    Finish,
    LeaverTask,
    Outcome,
    Publish,
    Published,
    Step,
    UpdateRef,
)
from services.training.rounds import EVALUATION_BATCH
from services.unlearning.fedforget.spec import Distil, FedForget
from services.unlearning.steps import erasure_of, num_asked, returned, server_learning_rate, weighted_step
from services.wire.message import Id, Message


class StoredContribution(Message):
    update_id: Id
    client: str
    weight: float


class FedForgetState(Message):
    phase: Literal["teaching", "composing", "asking", "aggregating", "judging", "publishing", "finished", "failed"]
    model: str
    """The model in hand; nothing of it is published before the end."""
    teachers: dict[str, str] = {}
    """Each leaver's own model (teacher B), when it is used."""
    waiting: dict[str, str] = {}
    """Updates that teachers are still to be made of."""
    done: int = 0
    asked: int = 0
    """Rounds asked for; each has a number of its own after the line's last round."""
    num_missed: int = 0
    contributions: list[StoredContribution] = []
    figures: dict[str, float] = {}
    reason: str = ""


class FedForgetProgram:
    state_type = FedForgetState

    def start(self, view: CohortView) -> tuple[FedForgetState, Step]:
        state = FedForgetState(phase="asking", model=erasure_of(view).head)
        return _ask_for_teachers(state, view) if _spec(view).teacher_b else _ask(state, view)

    def resume(self, state: FedForgetState, outcome: Outcome, view: CohortView) -> tuple[FedForgetState, Step]:
        match state.phase, outcome:
            case "teaching", Collected(updates=updates):
                return _compose(state, updates, view)
            case "composing", Computed(digest=str(digest)):
                return _composed(state, digest, view)
            case "asking", Collected(updates=updates):
                return _aggregate(state, updates, view)
            case "aggregating", Computed(digest=str(digest)):
                return _judge(state.model_copy(update={"model": digest, "done": state.done + 1}), view)
            case "judging", Computed(figures=figures):
                judged = {**state.figures, "validation_accuracy": figures["accuracy"]}
                return _next_round(state.model_copy(update={"figures": judged}), view)
            case "publishing", Published():
                return state.model_copy(update={"phase": "finished"}), Finish(state.reason)
        raise InvariantBroken(f"FedForget in phase {state.phase} cannot take {type(outcome).__name__}")


def leaver_factor(spec: FedForget, t: int) -> float:
    """λ_f(t)."""
    return 1 + (spec.lambda_0 - 1) * math.exp(-math.log(10) / spec.rounds * t)


def weigh(updates: Sequence[UpdateRef], leavers: Sequence[str], spec: FedForget, t: int) -> list[float]:
    """Weights of a round in the order of the updates; the leavers' share is at most `max_share`."""
    factor = leaver_factor(spec, t)
    theirs = sum(u.num_samples for u in updates if u.client in leavers)
    others = sum(u.num_samples for u in updates if u.client not in leavers)
    capped = others * spec.max_share / (1 - spec.max_share)  # what makes exactly that share
    if factor * theirs > capped and others:
        factor = capped / theirs
    return [u.num_samples * (factor if u.client in leavers else 1.0) for u in updates]


def _ask_for_teachers(state: FedForgetState, view: CohortView) -> tuple[FedForgetState, Step]:
    """Teacher B is the leaver's own model as ordinary local training makes it from the model at the fence."""
    erasure, spec = erasure_of(view), _spec(view)
    ask = AskClients(
        "train",
        erasure.round + 1,
        state.model,
        num_clients=0,
        quorum=len(erasure.leavers),
        deadline_s=spec.deadline_s,
        leavers=tuple(LeaverTask(client, "train") for client in erasure.leavers),
        close_at_deadline=True,
    )
    return state.model_copy(update={"phase": "teaching", "asked": 1}), ask


def _compose(state: FedForgetState, updates: Sequence[UpdateRef], view: CohortView) -> tuple[FedForgetState, Step]:
    leavers = erasure_of(view).leavers
    waiting = {update.client: digest for update, digest in returned(updates, leavers)}
    if missing := sorted(set(leavers) - set(waiting)):
        return _fail(state, f"no answer from {', '.join(missing)}: the leaver must be online")
    return _compose_next(state.model_copy(update={"waiting": waiting}))


def _compose_next(state: FedForgetState) -> tuple[FedForgetState, Step]:
    client = min(state.waiting)
    return state.model_copy(update={"phase": "composing"}), weighted_step(state.model, [(state.waiting[client], 1.0)])


def _composed(state: FedForgetState, digest: str, view: CohortView) -> tuple[FedForgetState, Step]:
    client = min(state.waiting)
    waiting = {name: update for name, update in state.waiting.items() if name != client}
    after = state.model_copy(update={"waiting": waiting, "teachers": {**state.teachers, client: digest}})
    return _compose_next(after) if waiting else _ask(after, view)


def _ask(state: FedForgetState, view: CohortView) -> tuple[FedForgetState, Step]:
    erasure, spec = erasure_of(view), _spec(view)
    given = spec.model_dump(include={"alpha", "lambda_neg", "temperature", "teacher"})

    def work(client: str) -> Distil:
        teacher_b = state.teachers.get(client)
        return Distil(local=spec.local(view.spec.local), teacher_a=erasure.head, teacher_b=teacher_b, **given)

    num_clients = num_asked(view)
    ask = AskClients(
        "train",
        erasure.round + state.asked + 1,
        state.model,
        num_clients,
        quorum=num_clients + len(erasure.leavers),
        deadline_s=spec.deadline_s,
        leavers=tuple(LeaverTask(client, "distil", work(client)) for client in erasure.leavers),
        close_at_deadline=True,
    )
    return state.model_copy(update={"phase": "asking", "asked": state.asked + 1}), ask


def _aggregate(state: FedForgetState, updates: Sequence[UpdateRef], view: CohortView) -> tuple[FedForgetState, Step]:
    erasure, spec = erasure_of(view), _spec(view)
    answers = [(update, update.digest) for update in updates if update.digest is not None]
    present = {update.client for update, _ in answers}
    missing = sorted(set(erasure.leavers) - present)
    if missing or present == set(erasure.leavers):
        who = ", ".join(missing) or "the remaining clients"
        after = state.model_copy(update={"num_missed": state.num_missed + 1})
        if after.num_missed > spec.max_missed:
            return _fail(after, f"{after.num_missed} rounds had no answer from {who}")
        return _ask(after, view)
    received = [u.metrics["forgotten_accuracy"] for u, _ in answers if "forgotten_accuracy" in u.metrics]
    figures = {**state.figures, **({"forgotten_accuracy": max(received)} if received else {})}
    if spec.early_stop and state.done and _has_forgotten(figures):
        return _publish(state.model_copy(update={"figures": figures}), view, "its accuracy fell to that of strangers")
    weights = weigh([update for update, _ in answers], erasure.leavers, spec, state.done)
    known = {one.client: one for one in state.contributions}  # all who are in the model, by their newest update
    for (update, _), weight in zip(answers, weights, strict=True):
        known[update.client] = StoredContribution(update_id=update.update_id, client=update.client, weight=weight)
    contributions = [known[client] for client in sorted(known)]
    step = weighted_step(
        state.model,
        [(digest, weight) for (_, digest), weight in zip(answers, weights, strict=True)],
        server_learning_rate(view),
    )
    changed = {"phase": "aggregating", "figures": figures, "contributions": contributions}
    return state.model_copy(update=changed), step


def _has_forgotten(figures: dict[str, float]) -> bool:
    """Both figures are of the model in hand: judged after the last round, reported by the leaver in this one."""
    names = ("forgotten_accuracy", "validation_accuracy")
    return all(name in figures and math.isfinite(figures[name]) for name in names) and (
        figures["forgotten_accuracy"] <= figures["validation_accuracy"]
    )


def _judge(state: FedForgetState, view: CohortView) -> tuple[FedForgetState, Step]:
    data = view.spec.validation.data
    if data is None or not _spec(view).early_stop:
        return _next_round(state, view)
    params = {
        "model": view.spec.model.model_dump(),
        "weights": state.model,
        "data": data,
        "batch_size": EVALUATION_BATCH,
    }
    return state.model_copy(update={"phase": "judging"}), Compute("evaluate_model", params, (state.model, data))


def _next_round(state: FedForgetState, view: CohortView) -> tuple[FedForgetState, Step]:
    if state.done < _spec(view).rounds:
        return _ask(state, view)
    return _publish(state, view, "all rounds are done")


def _publish(state: FedForgetState, view: CohortView, why: str) -> tuple[FedForgetState, Step]:
    contributions = tuple(Contribution(c.update_id, c.client, c.weight, 0) for c in state.contributions)
    figures = {**state.figures, "num_rounds": float(state.done), "num_missed": float(state.num_missed)}
    step = Publish(
        state.model,
        erasure_of(view).round + state.asked,
        "forgotten",
        contributions,
        scale=server_learning_rate(view),
        metrics=figures,
    )
    reason = f"forgot in {state.done} rounds: {why}"
    return state.model_copy(update={"phase": "publishing", "reason": reason}), step


def _fail(state: FedForgetState, reason: str) -> tuple[FedForgetState, Step]:
    return state.model_copy(update={"phase": "failed"}), Abort(f"{reason}; use NoT or retrain")


def _spec(view: CohortView) -> FedForget:
    return FedForget.model_validate(dict(erasure_of(view).params))
