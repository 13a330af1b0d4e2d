"""Uniform selection has no parameters."""

from __future__ import annotations

from typing import Literal

from services.selection.spec import SelectionSpec


class Uniform(SelectionSpec):
    policy: Literal["uniform"] = "uniform"
