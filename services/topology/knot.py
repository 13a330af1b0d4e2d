"""KNOT: clusters of clients that train alike (Su and Li, INFOCOM 2023, "Asynchronous Federated Unlearning").

One profiling round gives each client a training time T_k and a disparity S_k; cluster n has target values T̃_n, S̃_n.
The level D_kn says how badly client k fits cluster n, and `assign` makes the sorted vector of D over all assigned pairs
lexicographically smallest. Clients are rows in the caller's order (K of them), clusters are columns (N).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

import numpy as np
import numpy.typing as npt

from services.core.errors import InvariantBroken, Rejected
from services.topology import level_flow, tie_break

AnchorKind = Literal["linear", "paper", "quantile"]
Doubles = npt.NDArray[np.float64]

NUM_LEVELS: Final = 100


def assign(
    levels: npt.ArrayLike, *, min_size: int, max_size: int, max_memberships: int = 1
) -> tuple[tuple[int, ...], ...]:
    """For each client the indices of its clusters, ascending; `levels` is the K×N matrix of D.

    Every client is in 1..max_memberships clusters, every cluster has min_size..max_size clients. The vector of D over
    the assigned pairs, sorted from the largest and padded with zeros, is lexicographically smallest; among equals the
    assignment with the fewest pairs, then the one that gives the first client the lowest indices, then the second, ...
    """
    levels_KN = np.asarray(levels)
    if levels_KN.ndim != 2 or levels_KN.dtype.kind not in "iu" or (levels_KN.size and levels_KN.min() < 0):
        raise InvariantBroken("levels must be a K×N matrix of non-negative integers")
    num_clients, num_clusters = levels_KN.shape
    check_bounds(num_clients, num_clusters, min_size, max_size, max_memberships)
    levels_RN, row_of_client_K, num_clients_R = np.unique(
        levels_KN.astype(np.int64), axis=0, return_inverse=True, return_counts=True
    )
    face = level_flow.optimal_face(
        levels_RN,
        num_clients_R.astype(np.int64),
        min_size=min_size,
        max_size=max_size,
        max_memberships=min(max_memberships, num_clusters),
    )
    return tuple(tie_break.choose(face, row_of_client_K.reshape(-1)))


def default_bounds(num_clients: int, num_clusters: int) -> tuple[int, int]:
    """c2 = ⌊K/2N⌋, but no cluster is left empty; c3 = ⌈K/2⌉, or ⌈K/N⌉ where that is more (K when N = 1)."""
    return max(1, num_clients // (2 * num_clusters)), max(
        math.ceil(num_clients / 2), math.ceil(num_clients / num_clusters)
    )


def check_bounds(num_clients: int, num_clusters: int, min_size: int, max_size: int, max_memberships: int = 1) -> None:
    """Refuse bounds that no assignment can meet."""
    if num_clients < 1 or num_clusters < 1 or max_memberships < 1 or min_size < 0:
        raise Rejected("invalid-run", "Clusters need at least one client, one cluster and one membership per client.")
    memberships = num_clients * min(max_memberships, num_clusters)
    enough_clients = min_size <= num_clients and num_clusters * min_size <= memberships
    if min_size <= max_size and enough_clients and num_clusters * max_size >= num_clients:
        return
    fewer = min(num_clusters, num_clients)
    low, high = default_bounds(num_clients, fewer)
    raise Rejected(
        "invalid-run",
        f"{num_clients} clients, each in at most {max_memberships} of {num_clusters} clusters, cannot make clusters of "
        f"{min_size} to {max_size} clients: that needs at least {num_clusters * min_size} memberships of the "
        f"{memberships} possible, and at least {num_clients} of {num_clusters * max_size} places. "
        f"Feasible are {fewer} clusters with min_size {low} and max_size {high}.",
    )


@dataclass(frozen=True)
class Anchors:
    """T̃_n (seconds) and S̃_n of every cluster, and the ranges by which both features are normalised, frozen when the
    clusters are made so that newcomers are measured with the same rule. a and b weigh time and disparity."""

    times: tuple[float, ...]
    disparities: tuple[float, ...]
    time_range: tuple[float, float]
    disparity_range: tuple[float, float]
    a: float = 1.0
    b: float = 1.0

    def distances(self, times_K: npt.ArrayLike, disparities_K: npt.ArrayLike) -> Doubles:
        """d_kn = ‖(a(T̃_n − T_k), b(S̃_n − S_k))‖ with both features normalised, [K, N]."""
        time_KN = np.asarray(self.times) - np.asarray(times_K, np.float64)[:, None]
        disparity_KN = np.asarray(self.disparities) - np.asarray(disparities_K, np.float64)[:, None]
        scaled_time_KN = self.a * time_KN / _width(self.time_range)
        scaled_disparity_KN = self.b * disparity_KN / _width(self.disparity_range)
        return np.asarray(np.sqrt(scaled_time_KN**2 + scaled_disparity_KN**2), np.float64)

    def figures(self) -> dict[str, float]:
        """The anchors as a kernel reports them; `from_figures` reads them back."""
        return {
            **{f"anchor_time:{n}": time for n, time in enumerate(self.times)},
            **{f"anchor_disparity:{n}": disparity for n, disparity in enumerate(self.disparities)},
            "time_min": self.time_range[0],
            "time_max": self.time_range[1],
            "disparity_min": self.disparity_range[0],
            "disparity_max": self.disparity_range[1],
        }

    @classmethod
    def from_figures(cls, figures: Mapping[str, float], *, a: float = 1.0, b: float = 1.0) -> Self:
        num_clusters = sum(name.startswith("anchor_time:") for name in figures)
        return cls(
            times=tuple(figures[f"anchor_time:{n}"] for n in range(num_clusters)),
            disparities=tuple(figures[f"anchor_disparity:{n}"] for n in range(num_clusters)),
            time_range=(figures["time_min"], figures["time_max"]),
            disparity_range=(figures["disparity_min"], figures["disparity_max"]),
            a=a,
            b=b,
        )


def profile_levels(
    times: Sequence[float],
    disparities: Sequence[float],
    num_clusters: int,
    *,
    anchors: AnchorKind = "linear",
    a: float = 1.0,
    b: float = 1.0,
) -> tuple[npt.NDArray[np.int64], Anchors]:
    """D_kn = ⌈100 (d_kn − d_min) / (d_max − d_min)⌉, all 0 when the distances are equal, and the anchors used.

    `linear` spreads targets evenly over the observed range, `quantile` over the observed distribution (for heavy
    tails), `paper` sets S̃_n = n/N and leaves disparities, which lie in [0, 1], as they are.
    """
    times_K, disparities_K = np.asarray(times, np.float64), np.asarray(disparities, np.float64)
    if not (len(times_K) == len(disparities_K) > 0 and np.isfinite(times_K).all() and np.isfinite(disparities_K).all()):
        raise InvariantBroken("every client needs a finite time and a finite disparity")
    time_range = (float(times_K.min()), float(times_K.max()))
    disparity_range = (float(disparities_K.min()), float(disparities_K.max()))
    if anchors == "paper":
        disparity_range = (0.0, 1.0)
    targets = Anchors(
        times=_targets(times_K, time_range, num_clusters, "linear" if anchors == "paper" else anchors),
        disparities=_targets(disparities_K, disparity_range, num_clusters, anchors),
        time_range=time_range,
        disparity_range=disparity_range,
        a=a,
        b=b,
    )
    distance_KN = targets.distances(times_K, disparities_K)
    nearest, farthest = distance_KN.min(), distance_KN.max()
    if farthest == nearest:
        return np.zeros(distance_KN.shape, np.int64), targets
    level_KN = np.ceil(NUM_LEVELS * ((distance_KN - nearest) / (farthest - nearest)))
    return level_KN.astype(np.int64), targets


def place_newcomer(distances: Sequence[float], sizes: Mapping[int, int], max_size: int) -> int:
    """The nearest cluster that has room, the lowest index among equals; `sizes` of those that may be joined."""
    return min(_with_room(sizes, max_size), key=lambda cluster: (distances[cluster], cluster))


def draw_for_newcomer(name: str, sizes: Mapping[int, int], max_size: int, seed: int) -> int:
    """The baseline's rule: the smallest cluster that has room, by lot among equals."""

    def lot(cluster: int) -> tuple[int, bytes]:
        return sizes[cluster], hashlib.sha256(f"{seed}\x1fnewcomer\x1f{name}\x1f{cluster}".encode()).digest()

    return min(_with_room(sizes, max_size), key=lot)


def check_room(sizes: Mapping[int, int], max_size: int, num_newcomers: int) -> None:
    if sum(max(0, max_size - size) for size in sizes.values()) < num_newcomers:
        raise Rejected(
            "conflict", f"All {len(sizes)} clusters hold {max_size} clients already; raise max_size in a new run."
        )


def _with_room(sizes: Mapping[int, int], max_size: int) -> list[int]:
    check_room(sizes, max_size, 1)
    return [cluster for cluster, size in sizes.items() if size < max_size]


def random_assignment(
    names: Sequence[str], num_clusters: int, seed: int, min_size: int, max_size: int
) -> tuple[tuple[int, ...], ...]:
    """The baseline: clusters of equal size (to within one), drawn by lot from the names and the seed."""
    check_bounds(len(names), num_clusters, min_size, max_size)

    def lot(index: int) -> tuple[bytes, str]:
        return hashlib.sha256(f"{seed}\x1fcluster\x1f{names[index]}".encode()).digest(), names[index]

    cluster_of = {index: position % num_clusters for position, index in enumerate(sorted(range(len(names)), key=lot))}
    return tuple((cluster_of[index],) for index in range(len(names)))


def disparity(global_step: npt.NDArray[Any], delta: npt.NDArray[Any]) -> float:
    """S = (1 − cos(ω1 − ω0, Δ)) / 2: 0 when the client pulls the way of all, 1 when it pulls against them."""
    step, own = np.ravel(global_step).astype(np.float64), np.ravel(delta).astype(np.float64)
    return disparity_from_products(float(step @ own), float(step @ step), float(own @ own))


def disparity_from_products(product: float, step_squared: float, delta_squared: float) -> float:
    """The same from inner products. A vector of length zero has no direction: 0.5, neither with nor against."""
    length = math.sqrt(step_squared) * math.sqrt(delta_squared)
    if length == 0.0:
        return 0.5
    return min(1.0, max(0.0, (1.0 - product / length) / 2.0))


def _targets(values_K: Doubles, span: tuple[float, float], num_clusters: int, kind: AnchorKind) -> tuple[float, ...]:
    low, high = span
    if num_clusters == 1:
        return ((low + high) / 2,)
    match kind:
        case "linear":
            return tuple(low + (high - low) * n / (num_clusters - 1) for n in range(num_clusters))
        case "paper":
            return tuple((n + 1) / num_clusters for n in range(num_clusters))
        case "quantile":
            middles = [(n + 0.5) / num_clusters for n in range(num_clusters)]
            return tuple(float(value) for value in np.quantile(values_K, middles))


def _width(span: tuple[float, float]) -> float:
    return (span[1] - span[0]) or 1.0
