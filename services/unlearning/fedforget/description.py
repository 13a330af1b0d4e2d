"""What FedForget is, promises and needs."""

from __future__ import annotations

from typing import Final

from services.methods.description import ClientWork, Unlearning
from services.unlearning.fedforget.spec import Distil, FedForget

METHOD: Final = Unlearning(
    name="fedforget",
    summary="for some rounds the leaver distils a teacher without its answers while the others train; its weight fades",
    spec=FedForget,
    guarantee="approximate",
    needs_leaver=True,
    recovery_rounds=2,
    program="services.unlearning.fedforget.plan:FedForgetProgram",
    client_work={"distil": ClientWork("services.unlearning.fedforget.client:carry_out", Distil)},
)
