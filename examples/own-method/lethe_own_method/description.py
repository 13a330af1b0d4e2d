"""What Lethe is told of the method. It imports the parameters only; code is named, and imported when it is needed."""

from __future__ import annotations

from typing import Final

from lethe_own_method.spec import ScaleOut
from services.methods.description import Unlearning

METHOD: Final = Unlearning(
    name="scale_out",
    summary="scale the leaver's last update out of the model, then let the remaining clients train on",
    spec=ScaleOut,
    guarantee="approximate",
    recovery_rounds=2,
    program="lethe_own_method.plan:ScaleOutProgram",
    kernels={"scale_out_updates": "lethe_own_method.kernels:scale_out_updates"},
)
