"""Imba-ULRc at a client: what is made, what is not, and that it stays there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from services.recovery.imba_ulrc.client import MOST_CATEGORIES, categories, make_samples
from services.recovery.imba_ulrc.encoder import EncoderDiverged, Scaling, permuted, train_encoder
from services.recovery.imba_ulrc.spec import ImbaUlrc

QUICK: dict[str, Any] = {"encoder_epochs": 5, "latent_size": 4}


def images(num_of: dict[int, int], seed: int = 0) -> tuple[Any, Any]:
    """Blobs of 6x6 pixels, each class in a corner of its own."""
    rng = np.random.default_rng(seed)
    x, y = [], []
    for label, count in num_of.items():
        base = np.zeros((1, 6, 6), dtype=np.float32)
        base[0, 3 * (label % 2) : 3 * (label % 2) + 3, 3 * (label // 2) : 3 * (label // 2) + 3] = 0.8
        x.append(np.clip(base + 0.1 * rng.standard_normal((count, 1, 6, 6)), 0, 1).astype(np.float32))
        y += [label] * count
    return np.concatenate(x), np.array(y)


@pytest.mark.parametrize(("own", "made"), [(6, 14), (2, 18), (1, 19), (0, 0), (20, 0), (30, 0)])
def test_as_many_are_made_as_the_class_lacks_and_none_without_any(own: int, made: int) -> None:
    x, y = images({0: 15, 1: 25, 3: own})
    found = make_samples(x, y, ImbaUlrc(**QUICK), 3, seed=1)
    assert found.shape == (made, 1, 6, 6) and found.dtype == np.float32
    assert np.isfinite(found).all() and found.min(initial=0) >= 0 and found.max(initial=0) <= 1


def test_what_is_made_looks_like_its_class() -> None:
    x, y = images({0: 40, 1: 40, 3: 6})
    made = make_samples(x, y, ImbaUlrc(encoder_epochs=100, latent_size=4), 3, seed=1)
    means = {label: x[y == label].mean(axis=0) for label in (0, 1, 3)}
    nearest = [min(means, key=lambda label: float(np.abs(one - means[label]).sum())) for one in made]
    assert nearest.count(3) == len(made) == 34


def test_the_same_seed_makes_the_same_and_another_one_others() -> None:
    x, y = images({0: 20, 1: 20, 3: 5})
    first, again, other = (make_samples(x, y, ImbaUlrc(**QUICK), 3, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_the_steps_can_be_switched_off_one_by_one() -> None:
    x, y = images({0: 20, 1: 20, 3: 5})
    assert len(make_samples(x, y, ImbaUlrc(**QUICK, oversample=False), 3, seed=1)) == 0
    noisy, cleaned = (make_samples(x, y, ImbaUlrc(**QUICK, denoise=wanted), 3, seed=1) for wanted in (False, True))
    assert len(noisy) == len(cleaned) == 15 and not np.array_equal(noisy, cleaned)


def test_categories_of_a_table_come_from_one_real_sample() -> None:
    rng = np.random.default_rng(0)
    number, kind = rng.normal(size=(60, 2)), rng.integers(0, 3, 60)
    x = np.column_stack([number, np.eye(3)[kind], 10.0 * kind]).astype(np.float32)
    y = np.array([0] * 25 + [1] * 25 + [2] * 10)
    assert categories(torch.from_numpy(x)).tolist() == [2, 3, 4, 5]
    made = make_samples(x, y, ImbaUlrc(**QUICK), 2, seed=1)
    assert made.shape == (15, 6)
    real = {tuple(row) for row in x[y == 2][:, 2:].tolist()}
    assert {tuple(row) for row in made[:, 2:].tolist()} <= real
    assert not {tuple(row) for row in made[:, :2].tolist()} & {tuple(row) for row in x[:, :2].tolist()}


def test_a_column_of_many_whole_numbers_is_no_category() -> None:
    column = torch.arange(100.0)[:, None]
    assert categories(torch.cat([column, column % MOST_CATEGORIES, column / 2], dim=1)).tolist() == [1]


def test_columns_of_a_table_are_scaled_each_by_itself_and_pixels_together() -> None:
    x = torch.tensor([[0.0, 100.0, 5.0], [2.0, 300.0, 5.0]])
    assert Scaling.of(x, is_table=True).std.tolist() == [1.0, 100.0, 1.0]
    assert Scaling.of(x, is_table=False).std.ndim == 0


def test_an_encoder_that_diverges_is_reported_and_makes_nothing() -> None:
    x, y = images({0: 20, 1: 20, 3: 5})
    with pytest.raises(EncoderDiverged):
        make_samples(x * np.float32(3e38), y, ImbaUlrc(**QUICK), 3, seed=1)


def test_permuted_codes_are_matched_with_their_own_samples_unless_told_otherwise() -> None:
    x, y = images({0: 30, 1: 30})
    rows = torch.from_numpy(x).flatten(1)
    model = train_encoder(rows, torch.from_numpy(y), ImbaUlrc(encoder_epochs=60, latent_size=4), False, seed=1)
    mixed = rows[[0, 40, 1, 41]]  # reversed, each meets one of another class
    with torch.no_grad():
        assert float(permuted(model, mixed, "matched")) < float(permuted(model, mixed, "mismatched"))
    assert ImbaUlrc().permutation == "matched"
