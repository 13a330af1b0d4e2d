"""FedCIO's clusters: spectral clustering of the profiling updates by the angle between them.

Affinity (1 + cos)/2, normalised Laplacian, the eigenvectors of its N smallest eigenvalues, k-means on their rows
(Ng, Jordan and Weiss, 2001). Sizes are then held to the run's bounds.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from services.topology import knot

Doubles = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MAX_ITERATIONS: Final = 300


def cluster(
    products_KK: Doubles, num_clusters: int, seed: int, *, min_size: int, max_size: int
) -> tuple[tuple[int, ...], ...]:
    """`products_KK` holds the inner products of the updates. Clusters are numbered by their first client.

    Where k-means breaks the bounds, all clients are assigned anew by their distances to its centres, as in KNOT.
    """
    knot.check_bounds(len(products_KK), num_clusters, min_size, max_size)
    points_KN = embed(cosines(products_KK), num_clusters)
    centres_NN, label_K = _k_means(points_KN, num_clusters, seed)
    sizes_N = np.bincount(label_K, minlength=num_clusters)
    if sizes_N.min() < min_size or sizes_N.max() > max_size:
        distance_KN = np.sqrt(((points_KN[:, None] - centres_NN) ** 2).sum(axis=2))
        level_KN = np.ceil(knot.NUM_LEVELS * distance_KN / (distance_KN.max() or 1.0)).astype(np.int64)
        repaired = knot.assign(level_KN, min_size=min_size, max_size=max_size)
        label_K = np.array([index for (index,) in repaired])
    number = {label: index for index, label in enumerate(dict.fromkeys(label_K.tolist()))}
    return tuple((number[label],) for label in label_K.tolist())


def cosines(products_KK: Doubles) -> Doubles:
    """An update of length zero is at right angles to all others."""
    norm_K = np.sqrt(np.diagonal(products_KK))
    safe_K = np.where(norm_K > 0, norm_K, 1.0)
    cosine_KK = np.clip(products_KK / safe_K[:, None] / safe_K, -1.0, 1.0)
    np.fill_diagonal(cosine_KK, 1.0)
    return np.asarray(cosine_KK, np.float64)


def embed(cosine_KK: Doubles, num_clusters: int) -> Doubles:
    affinity_KK = (1.0 + cosine_KK) / 2.0
    scale_K = 1.0 / np.sqrt(affinity_KK.sum(axis=1))
    laplacian_KK = np.eye(len(affinity_KK)) - scale_K[:, None] * affinity_KK * scale_K
    points_KN = np.linalg.eigh(laplacian_KK).eigenvectors[:, :num_clusters]
    length_K1 = np.sqrt((points_KN**2).sum(axis=1, keepdims=True))
    return np.asarray(points_KN / np.where(length_K1 > 0, length_K1, 1.0), np.float64)


def _k_means(points_KD: Doubles, num_clusters: int, seed: int) -> tuple[Doubles, Ints]:
    """Lloyd's iterations from k-means++ centres; a centre that loses all its points stays where it was."""
    rng = np.random.default_rng(seed)
    centres = [points_KD[rng.integers(len(points_KD))]]
    while len(centres) < num_clusters:
        nearest_K = _squared_distances(points_KD, np.array(centres)).min(axis=1)
        total = nearest_K.sum()
        centres.append(points_KD[rng.choice(len(points_KD), p=nearest_K / total if total > 0 else None)])
    centres_ND = np.array(centres)
    label_K = np.full(len(points_KD), -1)
    for _ in range(MAX_ITERATIONS):
        closest_K = _squared_distances(points_KD, centres_ND).argmin(axis=1)
        if (closest_K == label_K).all():
            break
        label_K = closest_K
        for index in np.unique(label_K).tolist():
            centres_ND[index] = points_KD[label_K == index].mean(axis=0)
    return centres_ND, label_K


def _squared_distances(points_KD: Doubles, centres_ND: Doubles) -> Doubles:
    return np.asarray(((points_KD[:, None] - centres_ND) ** 2).sum(axis=2), np.float64)
