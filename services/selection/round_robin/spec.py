"""Selection in turn has no parameters."""

from __future__ import annotations

from typing import Literal

from services.selection.spec import SelectionSpec


class RoundRobin(SelectionSpec):
    policy: Literal["round_robin"] = "round_robin"
