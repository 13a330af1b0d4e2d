"""The stage in which a cohort recovers: it trains until it has the round again that it had."""

from __future__ import annotations

from coordinator.engine.entities import Erasure
from coordinator.engine.erasure.stages import PLAIN, Recover
from services.methods import running
from services.methods.catalogue import UNLEARNING
from services.training.local_spec import LocalTraining


def recovery_of(erasure: Erasure, method: str, until_round: int) -> Recover:
    """How a cohort recovers that the erasure's method rolls back."""
    if UNLEARNING[method].local_training is not None:
        return Recover(until_round, method, dict(erasure.params))
    return Recover(until_round)


def local_training(own: LocalTraining, recovery: Recover | None, round: int) -> LocalTraining:
    """How clients train for this round of a cohort with this recovery; `own`: the run's own way."""
    if recovery is None or recovery.method == PLAIN or round > recovery.until_round:
        return own
    return running.local_training(own, recovery.method, recovery.params, round - recovery.from_round)
