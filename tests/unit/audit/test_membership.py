from __future__ import annotations

import numpy as np
import pytest

from services.audit import membership
from services.audit.membership import Split

RNG = np.random.default_rng(0)


def test_the_auc_is_the_share_of_pairs_in_the_right_order_with_ties_counting_half() -> None:
    for _ in range(20):
        members, strangers = RNG.integers(0, 6, 13).astype(float), RNG.integers(0, 6, 9).astype(float)
        pairs = [1.0 if m > s else 0.5 if m == s else 0.0 for m in members for s in strangers]
        assert membership.auc(members, strangers) == pytest.approx(sum(pairs) / len(pairs))


def test_the_true_rate_at_a_low_false_rate_allows_that_many_strangers() -> None:
    strangers = np.arange(100.0)
    assert membership.true_rate_at(np.array([98.5, 99.5, 97.0, 50.0]), strangers, 0.01) == 0.5
    assert membership.true_rate_at(np.array([98.5, 99.5]), strangers, 0.0) == 0.5


def test_the_threshold_is_chosen_on_the_attackers_own_half() -> None:
    members = np.array([5.0, 6.0, 1.0, 2.0])
    strangers = np.array([0.0, 1.0, 3.0, 9.0])
    parts = Split(np.array([0, 1]), np.array([0, 1]), np.array([2, 3]), np.array([2, 3]))
    found = membership.attack(members, strangers, parts)
    assert found["mia_accuracy"] == 0.25  # at 5: no member flagged, one of two strangers flagged
    assert found["forget_flagged_rate"] == 0 and found["mia_f1"] == 0


def test_a_memorised_set_is_found_and_a_forgotten_one_is_not() -> None:
    labels = np.arange(400) % 4
    parts = membership.split(labels, labels, seed=1)
    remembered = membership.attack(RNG.standard_normal(400) + 3, RNG.standard_normal(400), parts)
    forgotten = membership.attack(RNG.standard_normal(400), RNG.standard_normal(400), parts)
    assert remembered["mia_auc"] > 0.95 and remembered["mia_accuracy"] > 0.85 and remembered["mia_f1"] > 0.85
    assert abs(forgotten["mia_auc"] - 0.5) < 0.1


def test_members_and_strangers_are_matched_by_class_and_the_halves_are_disjoint() -> None:
    member_labels = np.array([0] * 10 + [1] * 4 + [2] * 5)
    stranger_labels = np.array([0] * 4 + [1] * 9 + [3] * 5)
    parts = membership.split(member_labels, stranger_labels, seed=3)
    for rows, labels in ((parts.members, member_labels), (parts.strangers, stranger_labels)):
        assert sorted(labels[rows]) == [0, 0, 1, 1]
    assert not set(parts.members) & set(parts.train_members)
    assert not set(parts.strangers) & set(parts.train_strangers)


@pytest.mark.parametrize("spoilt", [np.nan, np.inf])
def test_scores_that_are_not_finite_give_no_figures(spoilt: float) -> None:
    labels = np.zeros(8, int)
    parts = membership.split(labels, labels, seed=0)
    scores = np.zeros(8)
    scores[parts.members[0]] = spoilt
    assert membership.attack(scores, np.zeros(8), parts) == {"mia_samples": 0.0}


def test_no_common_class_gives_no_figures() -> None:
    parts = membership.split(np.zeros(8, int), np.ones(8, int), seed=0)
    assert membership.attack(np.zeros(8), np.zeros(8), parts) == {"mia_samples": 0.0}


def test_the_likelihood_ratio_is_that_of_two_gaussians() -> None:
    shadows = np.array([[2.0, 0.0], [4.0, 2.0], [0.0, 5.0], [-2.0, 7.0]])
    inside = np.array([[True, False], [True, False], [False, True], [False, True]])
    found = membership.likelihood_ratios(np.array([3.0, 1.0]), shadows, inside)
    # Means in (3, 6), out (-1, 1), every deviation 1: −0/2 + 16/2 and −25/2 + 0/2.
    assert found == pytest.approx([8.0, -12.5])


def test_a_sample_that_was_in_every_shadow_has_no_ratio() -> None:
    found = membership.likelihood_ratios(np.array([1.0]), np.array([[1.0], [2.0]]), np.array([[True], [True]]))
    assert np.isnan(found[0])


def test_confidence_is_the_logit_of_the_right_classs_probability() -> None:
    p = np.array([0.1, 0.5, 0.9])
    assert membership.scaled_confidence(np.log(p)) == pytest.approx(np.log(p / (1 - p)))
    assert np.isfinite(membership.scaled_confidence(np.array([0.0, -1e9]))).all()
