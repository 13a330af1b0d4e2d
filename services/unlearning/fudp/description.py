"""What FUDP is, promises and needs."""

from __future__ import annotations

from typing import Final

from services.methods.description import ClientWork, Unlearning
from services.unlearning.fudp.spec import Fudp, RateChannels

METHOD: Final = Unlearning(
    name="fudp",
    summary="prune the channels that tell one class apart, then let the remaining clients train on",
    spec=Fudp,
    guarantee="approximate",
    recovery_rounds=5,
    objection="services.unlearning.fudp.plan:objection",
    program="services.unlearning.fudp.plan:FudpProgram",
    kernels={"prune_channels": "services.unlearning.fudp.kernels:prune_channels"},
    client_work={"rate_channels": ClientWork("services.unlearning.fudp.client:carry_out", RateChannels)},
)
