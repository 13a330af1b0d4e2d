"""Which algorithm a run trains with: whom it asks, how it weighs updates, how far the server steps."""

from __future__ import annotations

from typing import assert_never

from services.program.contract import CohortView
from services.training.exact_fun.plan import Quantising
from services.training.exact_fun.spec import ExactFun
from services.training.fats.plan import Sampling
from services.training.fats.spec import Fats
from services.training.fedavg.plan import Averaging
from services.training.fedavg.spec import FedAvg
from services.training.fedbuff.plan import Buffering
from services.training.fedbuff.spec import FedBuff
from services.training.rounds import Algorithm


def algorithm_of(view: CohortView) -> Algorithm:
    match view.spec.training:
        case FedAvg() as spec:
            return Averaging(spec)
        case FedBuff() as spec:
            return Buffering(spec)
        case Fats() as spec:
            return Sampling(spec)
        case ExactFun() as spec:
            return Quantising(spec)
        case spec:
            assert_never(spec)
