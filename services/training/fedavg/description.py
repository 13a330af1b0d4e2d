"""What federated averaging is."""

from __future__ import annotations

from typing import Final

from services.methods.description import Training
from services.training.fedavg.spec import FedAvg

METHOD: Final = Training(
    name="fedavg",
    summary="synchronous rounds; the mean of the updates, weighted by samples",
    spec=FedAvg,
    algorithm="services.training.fedavg.plan:Averaging",
    in_lockstep=True,
)
