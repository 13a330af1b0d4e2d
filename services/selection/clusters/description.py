"""What selection by k-means is."""

from __future__ import annotations

from typing import Final

from services.methods.description import Selection
from services.selection.clusters.spec import ByCluster

METHOD: Final = Selection(
    name="clusters",
    summary="one by lot from each of as many k-means clusters of updates as clients are asked",
    spec=ByCluster,
    order="clusters_order",
    kernels={"clusters_order": "services.selection.clusters.kernels:clusters_order"},
)
