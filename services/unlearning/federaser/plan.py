"""Server decisions of FedEraser: walk through the stored rounds in order; in each, ask for short training from the
model rebuilt so far, calibrate every answer, add their weighted mean, publish.

The first stored round is applied as it is, to the initial model. A round below its quorum, or of which nothing is
stored any more, is skipped and counted.
"""

from __future__ import annotations

import math
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
    Outcome,
    Publish,
    Published,
    Recall,
    Recalled,
    Step,
)
from services.unlearning.federaser.spec import FedEraser
from services.unlearning.steps import erasure_of, num_asked, server_learning_rate, weighted_step
from services.wire.message import Id, Message

FIRST_ROUND = 1
"""The round that starts from the initial model; without its updates nothing can be rebuilt."""


class StoredUpdate(Message):
    client: str
    digest: str


class Answer(Message):
    update_id: Id
    client: str
    digest: str
    num_samples: int
    calibrated: str | None = None


class FedEraserState(Message):
    phase: Literal["recalling", "asking", "calibrating", "aggregating", "publishing", "finished", "failed"]
    model: str
    """Rebuilt so far."""
    rounds: list[int]
    """Still to walk through, ascending; the first one is in hand."""
    num_rounds: int
    """The rounds to walk through in all."""
    published: int = 0
    """The newest published round of the rebuilt line."""
    num_skipped: int = 0
    num_zero_norm: int = 0
    stored: list[StoredUpdate] = []
    asked: int = 0
    answers: list[Answer] = []


class FedEraserProgram:
    state_type = FedEraserState

    def start(self, view: CohortView) -> tuple[FedEraserState, Step]:
        erasure, spec = erasure_of(view), _spec(view)
        rounds = [round for round in erasure.history if (round - FIRST_ROUND) % spec.interval == 0]
        state = FedEraserState(phase="recalling", model=erasure.initial, rounds=rounds, num_rounds=len(rounds))
        if not rounds:
            return _fail(state, "the run kept no update history; use retrain, or NoT, which needs none")
        if rounds[0] != FIRST_ROUND:
            reason = f"the history begins with round {rounds[0]}: without round {FIRST_ROUND} nothing can be rebuilt"
            return _fail(state, f"{reason}; use retrain")
        return state, Recall(rounds[0])

    def resume(self, state: FedEraserState, outcome: Outcome, view: CohortView) -> tuple[FedEraserState, Step]:
        match state.phase, outcome:
            case "recalling", Recalled():
                return _recalled(state, outcome, view)
            case "asking", Collected():
                return _collected(state, outcome, view)
            case "calibrating", Computed(digest=str(digest), figures=figures):
                return _calibrated(state, digest, int(figures.get("num_zero_norm", 0)), view)
            case "aggregating", Computed(digest=str(digest)):
                return _publish(state, digest, view)
            case "publishing", Published():
                return _next_round(state, view)
        raise InvariantBroken(f"FedEraser in phase {state.phase} cannot take {type(outcome).__name__}")


def _recalled(state: FedEraserState, recalled: Recalled, view: CohortView) -> tuple[FedEraserState, Step]:
    round = state.rounds[0]
    found = [(update, update.digest) for update in recalled.updates if update.digest is not None]
    if round == FIRST_ROUND:
        if not found:
            return _fail(state, f"no update of round {FIRST_ROUND} is left but the leavers': use retrain")
        answers = [
            Answer(update_id=u.update_id, client=u.client, digest=d, num_samples=u.num_samples, calibrated=d)
            for u, d in found
        ]
        return _aggregate(state.model_copy(update={"answers": answers}), view)
    if not found:
        return _skip(state, view)
    spec = _spec(view)
    epochs = math.ceil(spec.calibration_ratio * view.spec.local.epochs)
    original = spec.participants == "original"
    num_clients = len(found) if original else min(len(found), num_asked(view))
    ask = AskClients(
        "train",
        round,
        state.model,
        num_clients,
        quorum=max(1, math.ceil(spec.quorum * num_clients)),
        deadline_s=spec.deadline_s,
        clients=tuple(update.client for update, _ in found) if original else None,
        local=view.spec.local.model_copy(update={"epochs": epochs}),
        close_at_deadline=True,
    )
    stored = [StoredUpdate(client=update.client, digest=digest) for update, digest in found]
    return state.model_copy(update={"phase": "asking", "stored": stored, "asked": num_clients}), ask


def _collected(state: FedEraserState, collected: Collected, view: CohortView) -> tuple[FedEraserState, Step]:
    answers = [
        Answer(update_id=update.update_id, client=update.client, digest=update.digest, num_samples=update.num_samples)
        for update in collected.updates
        if update.digest is not None
    ]
    if len(answers) < max(1, math.ceil(_spec(view).quorum * state.asked)):
        return _skip(state, view)
    return _calibrate(state.model_copy(update={"phase": "calibrating", "answers": answers}))


def _calibrate(state: FedEraserState) -> tuple[FedEraserState, Step]:
    """One kernel for each answer, in name order."""
    answer = next(answer for answer in state.answers if answer.calibrated is None)
    own = [stored.digest for stored in state.stored if stored.client == answer.client]
    stored = own or [stored.digest for stored in state.stored]
    params = {"model": state.model, "update": answer.digest, "stored": stored}
    return state, Compute("calibrate_update", params, (state.model, answer.digest, *stored))


def _calibrated(state: FedEraserState, digest: str, num_zero: int, view: CohortView) -> tuple[FedEraserState, Step]:
    index = next(i for i, answer in enumerate(state.answers) if answer.calibrated is None)
    answers = list(state.answers)
    answers[index] = answers[index].model_copy(update={"calibrated": digest})
    after = state.model_copy(update={"answers": answers, "num_zero_norm": state.num_zero_norm + num_zero})
    if index + 1 < len(answers):
        return _calibrate(after)
    return _aggregate(after, view)


def _aggregate(state: FedEraserState, view: CohortView) -> tuple[FedEraserState, Step]:
    updates = [(answer.calibrated or answer.digest, float(answer.num_samples)) for answer in state.answers]
    after = state.model_copy(update={"phase": "aggregating"})
    return after, weighted_step(state.model, updates, server_learning_rate(view))


def _publish(state: FedEraserState, digest: str, view: CohortView) -> tuple[FedEraserState, Step]:
    """The last model stands where the line stood at the fence; those before it keep the number of their round."""
    round = state.rounds[0] if len(state.rounds) > 1 else erasure_of(view).round
    contributions = tuple(
        Contribution(answer.update_id, answer.client, float(answer.num_samples), 0, answer.calibrated)
        for answer in state.answers
    )
    changed = {"phase": "publishing", "model": digest, "published": round, "answers": [], "stored": []}
    figures = {"num_skipped": float(state.num_skipped), "num_zero_norm": float(state.num_zero_norm)}
    step = Publish(digest, round, "forgotten", contributions, scale=server_learning_rate(view), metrics=figures)
    return state.model_copy(update=changed), step


def _skip(state: FedEraserState, view: CohortView) -> tuple[FedEraserState, Step]:
    skipped = state.num_skipped + 1
    after = state.model_copy(update={"num_skipped": skipped, "answers": [], "stored": []})
    if skipped > _spec(view).max_skipped * state.num_rounds:
        reason = f"{skipped} of {state.num_rounds} rounds could not be calibrated (nothing stored, or no quorum)"
        return _fail(after, f"{reason}; bring more clients online, or use retrain")
    return _next_round(after, view)


def _next_round(state: FedEraserState, view: CohortView) -> tuple[FedEraserState, Step]:
    rest = state.rounds[1:]
    if rest:
        return state.model_copy(update={"phase": "recalling", "rounds": rest}), Recall(rest[0])
    if state.published < erasure_of(view).round:  # the last rounds were skipped: the line goes on from where it was
        return _publish(state, state.model, view)
    done = state.num_rounds - state.num_skipped
    reason = f"rebuilt from {done} of {state.num_rounds} stored rounds, {state.num_skipped} skipped"
    return state.model_copy(update={"phase": "finished", "rounds": []}), Finish(reason)


def _fail(state: FedEraserState, reason: str) -> tuple[FedEraserState, Step]:
    return state.model_copy(update={"phase": "failed"}), Abort(reason)


def _spec(view: CohortView) -> FedEraser:
    return FedEraser.model_validate(dict(erasure_of(view).params))
