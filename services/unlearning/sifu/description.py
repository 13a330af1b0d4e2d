"""What SIFU is, promises and needs."""

from __future__ import annotations

from typing import Final

from services.methods.description import Unlearning
from services.unlearning.sifu.spec import Sifu

METHOD: Final = Unlearning(
    name="sifu",
    summary="go back to the newest model that the leaver had moved less than a bound, add noise, train on without it",
    spec=Sifu,
    guarantee="approximate",
    needs_distances=True,
    program="services.unlearning.sifu.plan:SifuProgram",
    kernels={
        "add_gaussian_noise": "services.unlearning.sifu.kernels:add_gaussian_noise",
        "measure_distances": "services.unlearning.sifu.kernels:measure_distances",
    },
    noisy_kernels=("add_gaussian_noise",),
)
