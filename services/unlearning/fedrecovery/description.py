"""What FedRecovery is, promises and needs."""

from __future__ import annotations

from typing import Final

from services.methods.description import Unlearning
from services.unlearning.fedrecovery.spec import FedRecovery

METHOD: Final = Unlearning(
    name="fedrecovery",
    summary="subtract the leaver's share of each round's step, weighted by the steps' squared norms, and add noise",
    spec=FedRecovery,
    guarantee="approximate",
    needs_remaining=False,
    needs_residuals=True,
    program="services.unlearning.fedrecovery.plan:FedRecoveryProgram",
    kernels={
        "accumulate_residuals": "services.unlearning.fedrecovery.kernels:accumulate_residuals",
        "remove_residuals": "services.unlearning.fedrecovery.kernels:remove_residuals",
    },
    noisy_kernels=("remove_residuals",),
)
