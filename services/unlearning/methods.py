"""Every erasure method by name, with what it promises and what it needs. The planner chooses by these."""

from __future__ import annotations

from typing import Final

from services.unlearning.federaser.spec import METHOD as FEDERASER
from services.unlearning.fedforget.spec import METHOD as FEDFORGET
from services.unlearning.fedrecovery.spec import METHOD as FEDRECOVERY
from services.unlearning.method import Method
from services.unlearning.negation.spec import METHOD as NOT
from services.unlearning.pga.spec import METHOD as PGA
from services.unlearning.rapid.spec import Rapid
from services.unlearning.sifu.spec import METHOD as SIFU

__all__ = ["METHODS", "NOISY_KERNELS", "Method"]

METHODS: Final[dict[str, Method]] = {
    "retrain": Method(
        "exact",
        "roll the cohorts with the client back to their newest model without it and train on",
        granularity="samples",
    ),
    "reinit": Method(
        "exact",
        "discard the cohorts with the client and restart them from the mean of the surviving cohorts inside them",
        needs_sub_cohorts=True,
        granularity="samples",
    ),
    "rapid": Method(
        "exact",
        "like retrain, with second-order steps at the clients until the round of the fence is reached again",
        spec=Rapid,
        granularity="samples",
        work_per_update=2.0,
    ),
    "federaser": FEDERASER,
    "pga": PGA,
    "fedforget": FEDFORGET,
    "not": NOT,
    "sifu": SIFU,
    "fedrecovery": FEDRECOVERY,
}
"""Of methods that cost the same the planner takes the first."""
NOISY_KERNELS: Final = frozenset(kernel for method in METHODS.values() for kernel in method.noisy_kernels)
