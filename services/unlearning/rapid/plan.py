"""Which rounds of a recovery use curvature: the hybrid schedule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from services.training.local_spec import LocalTraining
from services.unlearning.rapid.spec import Rapid


def local_training(own: LocalTraining, params: Mapping[str, Any], number: int) -> LocalTraining:
    """How clients train in round `number` of a recovery, counted from 1.

    The run's own way in the rounds j <= J0 of the recovery and where (j - J0) mod T0 = 0, AdaHessian in the others.
    """
    spec = Rapid.model_validate(params)
    past_warmup = number - spec.warmup_rounds
    if past_warmup <= 0 or past_warmup % spec.first_order_every == 0:
        return own
    return own.model_copy(update={"optimizer": "adahessian", "learning_rate": spec.learning_rate, "momentum": 0.0})
