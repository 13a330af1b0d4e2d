"""Parameters of selection by k-means."""

from __future__ import annotations

from typing import Literal

from services.selection.spec import ProfiledSpec


class ByCluster(ProfiledSpec):
    policy: Literal["clusters"] = "clusters"
