"""What FATS is."""

from __future__ import annotations

from typing import Final

from services.methods.description import Training
from services.training.fats.spec import Fats

METHOD: Final = Training(
    name="fats",
    summary="few clients, drawn by lot in each round; the plain mean of their updates",
    spec=Fats,
    algorithm="services.training.fats.plan:Sampling",
    draws_uniformly=True,
)
