"""What rapid retraining is, promises and needs."""

from __future__ import annotations

from typing import Final

from services.methods.description import Unlearning
from services.unlearning.rapid.spec import Rapid

METHOD: Final = Unlearning(
    name="rapid",
    summary="like retrain, with second-order steps at the clients until the round of the fence is reached again",
    spec=Rapid,
    guarantee="exact",
    granularity="samples",
    work_per_update=2.0,
    local_training="services.unlearning.rapid.plan:local_training",
)
