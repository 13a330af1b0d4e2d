"""What selection by k-center is."""

from __future__ import annotations

from typing import Final

from services.methods.description import Selection
from services.selection.k_center.spec import KCenter

METHOD: Final = Selection(
    name="k_center",
    summary="one by lot from each of as many groups as clients are asked; groups around updates that are far apart",
    spec=KCenter,
    order="k_center_order",
    kernels={"k_center_order": "services.selection.k_center.kernels:k_center_order"},
)
