"""What FedBuff is."""

from __future__ import annotations

from typing import Final

from services.methods.description import Training
from services.training.fedbuff.spec import FedBuff

METHOD: Final = Training(
    name="fedbuff",
    summary="asynchronous; a step whenever the buffer is full, stale updates weigh less",
    spec=FedBuff,
    algorithm="services.training.fedbuff.plan:Buffering",
)
