"""Server decisions of Exact-Fun: w' = Q(w + sum_k n_k delta_k / sum_k n_k), Q(x) = alpha * rint(x / alpha), everybody
in every round.

After an erasure the line stands at its newest model without the leaver, and walks the rounds that followed in order:
each is computed again from what the others sent. As long as it comes out as it was, what they sent afterwards is still
valid, and the round is recorded anew without the leaver. From the first that differs, clients train again.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.program.contract import (
    AskClients,
    CohortView,
    Collected,
    Outcome,
    PastRound,
    Published,
    Step,
    UpdateRef,
)
from services.training import rounds
from services.training.exact_fun.spec import ExactFun
from services.training.rounds import TrainingState
from services.wire.message import Digest, Id, Message


class KeptUpdate(Message):
    update_id: Id
    client: str
    digest: Digest
    num_samples: int
    base_round: int


class KeptRound(Message):
    """A round from before the erasure: what came out, and what of it is left to compute it from."""

    digest: Digest
    updates: list[KeptUpdate]


class ExactFunState(Message):
    training: TrainingState
    walk: list[KeptRound] = []
    """Rounds that may still stand, the next first."""


@dataclass(frozen=True, slots=True)
class Quantising:
    spec: ExactFun
    scale: float = 1.0

    @property
    def quantum(self) -> float:
        return self.spec.quantum

    def ask(self, view: CohortView, round: int, model: str) -> AskClients:
        return AskClients("train", round, model, view.num_members, view.num_members)

    def weigh(self, update: UpdateRef, round: int) -> tuple[float, int]:
        return float(update.num_samples), 0


class ExactFunProgram:
    state_type = ExactFunState

    def start(self, view: CohortView) -> tuple[ExactFunState, Step]:
        training, step = rounds.start(view, rounds.algorithm_of(view))
        return _walk(training, step, [_kept(past) for past in view.history], view)

    def resume(self, state: ExactFunState, outcome: Outcome, view: CohortView) -> tuple[ExactFunState, Step]:
        training, step = rounds.resume(state.training, outcome, view, rounds.algorithm_of(view))
        walk = state.walk
        if walk and isinstance(outcome, Published):
            walk = walk[1:] if training.head == walk[0].digest else []
        return _walk(training, step, walk, view)


def _walk(training: TrainingState, step: Step, walk: list[KeptRound], view: CohortView) -> tuple[ExactFunState, Step]:
    """Where clients would be asked for a round that they have answered before, take those answers."""
    if walk and isinstance(step, AskClients) and step.kind == "train":
        answers = tuple(
            UpdateRef(u.update_id, u.client, u.digest, u.num_samples, u.base_round, {}) for u in walk[0].updates
        )
        training, step = rounds.resume(training, Collected(answers), view, rounds.algorithm_of(view))
    return ExactFunState(training=training, walk=walk), step


def _kept(past: PastRound) -> KeptRound:
    updates = [
        KeptUpdate(
            update_id=u.update_id,
            client=u.client,
            digest=u.digest or "",
            num_samples=u.num_samples,
            base_round=u.base_round,
        )
        for u in past.updates
    ]
    return KeptRound(digest=past.digest, updates=updates)
