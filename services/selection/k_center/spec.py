"""Parameters of k-center."""

from __future__ import annotations

from typing import Literal

from services.selection.spec import ProfiledSpec


class KCenter(ProfiledSpec):
    policy: Literal["k_center"] = "k_center"
