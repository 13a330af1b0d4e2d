"""K-center's groups: greedy farthest-first centres, and everybody with the nearest centre.

The greedy centres are at most twice as far from the farthest client as the best possible ones (Gonzalez, 1985).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from services.selection.lots import lot
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


def k_center_order(params: Mapping[str, Any], inputs: Mapping[str, Stored], out: Writable) -> dict[str, float]:
    """Kernel. params: a Question. Writes the profile as its state, once."""
    question = Question.model_validate(params)
    profile = Profile.kept(question, inputs, out)
    group_of = groups(question, profile)
    return answer(by_lot_in_groups(question, group_of), num_groups=float(len(set(group_of.values()))))


def groups(question: Question, profile: Profile) -> dict[str, int]:
    """The group of every member. The first centre is drawn by lot, once for all rounds."""
    known, products_KK = profile.known(question.members)
    if not known:
        return with_strangers(question.members, [], np.zeros(0, np.int64))
    first = min(range(len(known)), key=lambda row: lot(question.seed, "centre", known[row]))
    centres = farthest_first(squared_distances(products_KK), num_groups(question, known), first)
    return with_strangers(question.members, known, nearest(squared_distances(products_KK), centres))


def farthest_first(distance_KK: Doubles, num_centres: int, first: int) -> list[int]:
    """Rows of centres: each is the farthest from those before it; of equals the first row."""
    centres = [first]
    nearest_K = distance_KK[first].copy()
    while len(centres) < num_centres:
        nearest_K[centres] = -1.0
        centres.append(int(nearest_K.argmax()))
        nearest_K = np.minimum(nearest_K, distance_KK[centres[-1]])
    return centres


def nearest(distance_KK: Doubles, centres: list[int]) -> Ints:
    """For each row the number of its nearest centre; of equals the first one."""
    label_K = distance_KK[:, centres].argmin(axis=1)
    label_K[centres] = np.arange(len(centres))
    return np.asarray(label_K, np.int64)
