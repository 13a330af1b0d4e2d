"""Membership inference: how well an attacker tells the forgotten samples from samples that were never trained on.

A score is higher for likelier members. The attacker's threshold is chosen on one half of the samples and judged on the
other; what needs no threshold is counted over both. Non-members are drawn with the members' classes, so that skewed
labels are not taken for memory. 0.5 is not the goal under skewed data: figures mean something next to those of a
retrained model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]
Labels = npt.NDArray[Any]

LOW_RATE: Final = 0.01
MIN_DEVIATION: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Split:
    """Rows of members and non-members, class by class as many of the one as of the other."""

    train_members: npt.NDArray[np.int64]
    train_strangers: npt.NDArray[np.int64]
    members: npt.NDArray[np.int64]
    strangers: npt.NDArray[np.int64]


def split(member_labels: Labels, stranger_labels: Labels, seed: int) -> Split:
    """Disjoint halves for the attacker and for its judgement. Classes without a pair on both sides are left out."""
    generator = np.random.default_rng(seed)
    halves: list[list[npt.NDArray[np.int64]]] = [[], [], [], []]
    for label in sorted(set(member_labels.tolist()) & set(stranger_labels.tolist())):
        rows = [generator.permutation(np.flatnonzero(labels == label)) for labels in (member_labels, stranger_labels)]
        half = min(len(rows[0]), len(rows[1])) // 2
        for side in (0, 1):
            halves[side].append(rows[side][:half])
            halves[2 + side].append(rows[side][half : 2 * half])
    return Split(*(np.concatenate(found) if found else np.empty(0, np.int64) for found in halves))


def attack(member_scores: Doubles, stranger_scores: Doubles, parts: Split) -> dict[str, float]:
    """`mia_auc`, `mia_accuracy` (balanced), `mia_f1`, `mia_tpr_at_low_fpr`, `forget_flagged_rate`, `mia_samples`.

    The area and the rate at few false alarms are of all samples, the others of the half that gave no threshold.
    Without samples, or with scores that are not finite, nothing but `mia_samples` is 0: a verdict then fails.
    """
    train = member_scores[parts.train_members], stranger_scores[parts.train_strangers]
    judged = member_scores[parts.members], stranger_scores[parts.strangers]
    members, strangers = (np.concatenate(halves) for halves in zip(train, judged, strict=True))
    if not len(members) or not all(np.isfinite(scores).all() for scores in (members, strangers)):
        return {"mia_samples": 0.0}
    threshold = best_threshold(*train)
    true_rate, false_rate = (float(np.mean(scores >= threshold)) for scores in judged)
    return {
        "mia_auc": auc(members, strangers),
        "mia_accuracy": (true_rate + 1 - false_rate) / 2,
        "mia_f1": 2 * true_rate / (true_rate + false_rate + 1),
        "mia_tpr_at_low_fpr": true_rate_at(members, strangers, LOW_RATE),
        "forget_flagged_rate": true_rate,
        "mia_samples": float(len(members) + len(strangers)),
    }


def auc(members: Doubles, strangers: Doubles) -> float:
    """The probability that a member scores higher than a stranger; ties count half."""
    ordered = np.sort(strangers)
    below = np.searchsorted(ordered, members, side="left")
    up_to = np.searchsorted(ordered, members, side="right")
    return float(np.mean((below + up_to) / 2) / len(strangers))


def true_rate_at(members: Doubles, strangers: Doubles, false_rate: float) -> float:
    """The largest share of members flagged by a threshold that flags at most `false_rate` of the strangers."""
    allowed = int(np.floor(false_rate * len(strangers) + 1e-9))
    limit = np.sort(strangers)[::-1][allowed] if allowed < len(strangers) else -np.inf
    return float(np.mean(members > limit))


def best_threshold(members: Doubles, strangers: Doubles) -> float:
    """The score from which on to say "member" for the best balanced accuracy; the lowest of equals."""
    candidates = np.unique(np.concatenate([members, strangers, [np.inf]]))
    true_rates = 1 - np.searchsorted(np.sort(members), candidates, side="left") / max(1, len(members))
    false_rates = 1 - np.searchsorted(np.sort(strangers), candidates, side="left") / max(1, len(strangers))
    return float(candidates[int(np.argmax(true_rates - false_rates))])


def likelihood_ratios(observed: Doubles, shadows: Doubles, inside: npt.NDArray[np.bool_]) -> Doubles:
    """log N(x; of the shadows that were trained on the sample) − log N(x; of those that were not), per sample.

    observed [samples], shadows and inside [shadows, samples]: logit-scaled confidences. NaN for a sample that no
    shadow, or every shadow, was trained on. Deviations are shared by all samples: a handful of shadows cannot give one
    for each.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        num_in, num_out = inside.sum(axis=0), (~inside).sum(axis=0)
        mean_in = np.where(inside, shadows, 0).sum(axis=0) / num_in
        mean_out = np.where(inside, 0, shadows).sum(axis=0) / num_out
        rest_in = np.where(inside, shadows - mean_in, 0.0)
        rest_out = np.where(inside, 0.0, shadows - mean_out)
        deviation_in = max(MIN_DEVIATION, float(np.sqrt(np.square(rest_in).sum() / max(1, inside.sum()))))
        deviation_out = max(MIN_DEVIATION, float(np.sqrt(np.square(rest_out).sum() / max(1, (~inside).sum()))))
        ratios: Doubles = (
            -(((observed - mean_in) / deviation_in) ** 2) / 2
            - np.log(deviation_in)
            + ((observed - mean_out) / deviation_out) ** 2 / 2
            + np.log(deviation_out)
        )
    return ratios


def scaled_confidence(log_right: Doubles) -> Doubles:
    """log(p / (1 − p)) of the right class's probability, from its logarithm."""
    bounded = np.clip(log_right, -50.0, -1e-12)
    found: Doubles = bounded - np.log(-np.expm1(bounded))
    return found
