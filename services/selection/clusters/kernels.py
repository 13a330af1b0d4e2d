"""Groups by k-means, from the inner products of the updates alone: a cluster's mean is never written down, because the
distance of a client to it follows from products."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from services.core.seeds import derive
from services.selection.profile import (
    Doubles,
    Ints,
    Profile,
    by_lot_in_groups,
    num_groups,
    squared_distances,
    with_strangers,
)
from services.selection.question import Question, answer
from services.tensors.streams import Stored, Writable

MAX_ITERATIONS: Final = 300


def clusters_order(params: Mapping[str, Any], inputs: Mapping[str, Stored], out: Writable) -> dict[str, float]:
    """Kernel. params: a Question. Writes the profile as its state, once."""
    question = Question.model_validate(params)
    profile = Profile.kept(question, inputs, out)
    known, products_KK = profile.known(question.members)
    label_K = np.zeros(0, np.int64)
    if known:
        label_K = k_means(products_KK, num_groups(question, known), derive(question.seed, "clusters"))
    group_of = with_strangers(question.members, known, label_K)
    return answer(by_lot_in_groups(question, group_of), num_groups=float(len(set(group_of.values()))))


def k_means(products_KK: Doubles, num_clusters: int, seed: int) -> Ints:
    """Lloyd's iterations from k-means++ clients. A cluster that loses everybody takes the client that is farthest from
    its own mean, so that there are always as many as asked for."""
    label_K = _plus_plus(squared_distances(products_KK), num_clusters, seed)
    for _ in range(MAX_ITERATIONS):
        distance_KN = distances_to_means(products_KK, label_K, num_clusters)
        new_K = _without_empty(distance_KN.argmin(axis=1), distance_KN, num_clusters)
        if (new_K == label_K).all():
            break
        label_K = new_K
    return np.asarray(label_K, np.int64)


def distances_to_means(products_KK: Doubles, label_K: Ints, num_clusters: int) -> Doubles:
    """Squared distance of each client to the mean of each cluster: G_kk - 2 mean_j G_kj + mean_ij G_ij."""
    weight_KN = (label_K[:, None] == np.arange(num_clusters)).astype(np.float64)
    weight_KN /= weight_KN.sum(axis=0)
    to_mean_KN = products_KK @ weight_KN
    of_means_N = (weight_KN * to_mean_KN).sum(axis=0)
    return np.asarray(np.diagonal(products_KK)[:, None] - 2.0 * to_mean_KN + of_means_N, np.float64)


def _plus_plus(distance_KK: Doubles, num_clusters: int, seed: int) -> Ints:
    rng = np.random.default_rng(seed)
    centres = [int(rng.integers(len(distance_KK)))]
    while len(centres) < num_clusters:
        nearest_K = distance_KK[:, centres].min(axis=1)
        nearest_K[centres] = 0.0
        total = nearest_K.sum()
        left = [row for row in range(len(distance_KK)) if row not in centres]
        drawn = rng.choice(len(distance_KK), p=nearest_K / total) if total > 0 else rng.choice(left)
        centres.append(int(drawn))
    label_K = distance_KK[:, centres].argmin(axis=1)
    label_K[centres] = np.arange(num_clusters)
    return np.asarray(label_K, np.int64)


def _without_empty(label_K: Ints, distance_KN: Doubles, num_clusters: int) -> Ints:
    label_K = label_K.copy()
    for cluster in range(num_clusters):
        if not (label_K == cluster).any():
            sizes_N = np.bincount(label_K, minlength=num_clusters)
            own_K = np.where(sizes_N[label_K] > 1, distance_KN[np.arange(len(label_K)), label_K], -1.0)
            label_K[int(own_K.argmax())] = cluster
    return label_K
