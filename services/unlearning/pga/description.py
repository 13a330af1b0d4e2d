"""What PGA is, promises and needs."""

from __future__ import annotations

from typing import Final

from services.methods.description import ClientWork, Unlearning
from services.unlearning.pga.spec import Ascend, Pga

METHOD: Final = Unlearning(
    name="pga",
    summary="the leaver raises its own loss inside a ball around the model without its last update; then the others "
    "train on",
    spec=Pga,
    guarantee="approximate",
    needs_leaver=True,
    recovery_rounds=5,
    program="services.unlearning.pga.plan:PgaProgram",
    kernels={
        "pga_radius": "services.unlearning.pga.kernels:pga_radius",
        "pga_reference": "services.unlearning.pga.kernels:pga_reference",
    },
    client_work={"ascend": ClientWork("services.unlearning.pga.client:carry_out", Ascend)},
)
