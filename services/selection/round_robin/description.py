"""What selection in turn is."""

from __future__ import annotations

from typing import Final

from services.methods.description import Selection
from services.selection.round_robin.spec import RoundRobin

METHOD: Final = Selection(
    name="round_robin",
    summary="in turn, in the order of names",
    spec=RoundRobin,
    draw="services.selection.round_robin.plan:draw",
)
