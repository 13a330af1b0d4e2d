"""What FedEraser is, promises and needs."""

from __future__ import annotations

from typing import Final

from services.methods.description import Unlearning
from services.unlearning.federaser.spec import FedEraser

METHOD: Final = Unlearning(
    name="federaser",
    summary="rebuild the model from the stored updates of the others, calibrated by short training, from the initial "
    "model on",
    spec=FedEraser,
    guarantee="approximate",
    needs_history=True,
    stride_parameter="interval",
    work_per_update=0.5,
    program="services.unlearning.federaser.plan:FedEraserProgram",
    kernels={"calibrate_update": "services.unlearning.federaser.kernels:calibrate_update"},
)
