"""Which rounds of a recovery use curvature: the hybrid schedule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from services.training.local_spec import LocalTraining
from services.unlearning.rapid.spec import Rapid


def recovery(params: Mapping[str, Any], from_round: int, until_round: int) -> dict[str, Any]:
    """What a cohort remembers while it trains from `from_round` back to `until_round`."""
    return {"params": dict(params), "from_round": from_round, "until_round": until_round}


def local_training(own: LocalTraining, under: Mapping[str, Any] | None, round: int) -> LocalTraining:
    """How clients train for this round; `under`: the recovery of their cohort, if it is under one.

    The run's own way in the rounds j <= J0 of the recovery and where (j - J0) mod T0 = 0, AdaHessian in the others.
    """
    if under is None or round > under["until_round"]:
        return own
    spec = Rapid.model_validate(under["params"])
    past_warmup = round - under["from_round"] - spec.warmup_rounds
    if past_warmup <= 0 or past_warmup % spec.first_order_every == 0:
        return own
    return own.model_copy(update={"optimizer": "adahessian", "learning_rate": spec.learning_rate, "momentum": 0.0})
