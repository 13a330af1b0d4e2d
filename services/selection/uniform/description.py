"""What uniform selection is."""

from __future__ import annotations

from typing import Final

from services.methods.description import Selection
from services.selection.uniform.spec import Uniform

METHOD: Final = Selection(
    name="uniform",
    summary="by lot; every set of clients is equally likely",
    spec=Uniform,
    draw="services.selection.uniform.plan:draw",
)
