"""What recovery methods compute at the clients, against the formulas written out slowly."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from services.data.dataset import Dataset
from services.models.build import build
from services.models.weights import load_weights, save_tensors
from services.recovery.fedrs.client import restriction
from services.recovery.imba_ulrc.client import least_apart, num_needed
from services.recovery.imba_ulrc.smote import JITTER, density_factors, interpolate, nearest
from services.recovery.kernels import find_class
from services.recovery.moon.client import contrast
from services.recovery.quickdrop.client import distil, gradient_distance
from services.recovery.quickdrop.spec import QuickDrop
from services.tensors.streams import StoredFile
from services.training.task import Classifier
from services.wire.v1.runs import ModelSpec
from tests.support.kernels import over_files

CPU = torch.device("cpu")


def points(num: int, size: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(num, size))


def slow_neighbours(all_points: Any, place: int, k: int) -> list[tuple[float, int]]:
    others = [(math.dist(all_points[place], other), i) for i, other in enumerate(all_points) if i != place]
    return sorted(others)[:k]


@pytest.mark.parametrize("k", [1, 5, 40])
def test_nearest_are_those_that_a_sorted_list_of_all_distances_begins_with(k: int) -> None:
    found = points(30, 4)
    distances, places = nearest(torch.from_numpy(found), k)
    for i in range(len(found)):
        wanted = slow_neighbours(found, i, k)
        assert places[i].tolist() == [place for _, place in wanted]
        np.testing.assert_allclose(distances[i], [distance for distance, _ in wanted], rtol=1e-9)


def test_interpolated_points_lie_between_a_point_and_one_of_its_nearest() -> None:
    found, generator = points(12, 3), torch.Generator().manual_seed(1)
    made, bases = interpolate(torch.from_numpy(found), 200, 5, torch.ones(3), generator)
    assert len(set(bases.tolist())) == 12
    for new, base in zip(made.numpy(), bases.tolist(), strict=True):
        ends = [found[place] for _, place in slow_neighbours(found, base, 5)]
        shares = [
            np.dot(new - found[base], end - found[base]) / np.dot(end - found[base], end - found[base]) for end in ends
        ]
        off = [
            np.abs(found[base] + share * (end - found[base]) - new).max()
            for share, end in zip(shares, ends, strict=True)
        ]
        nearest_line = int(np.argmin(off))
        assert off[nearest_line] < 1e-6 and -1e-6 <= shares[nearest_line] <= 1


def test_with_few_points_all_others_are_neighbours_and_one_alone_is_copied_with_a_jitter() -> None:
    two = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    made, _ = interpolate(two, 50, 5, torch.ones(2), torch.Generator().manual_seed(0))
    assert bool((made[:, 0] == made[:, 1]).all()) and bool((made >= 0).all()) and bool((made <= 1).all())
    spread = torch.tensor([1.0, 0.0])
    made, bases = interpolate(two[:1], 400, 5, spread, torch.Generator().manual_seed(0))
    assert bases.tolist() == [0] * 400
    assert made[:, 0].std().item() == pytest.approx(JITTER, rel=0.15) and made[:, 1].abs().max().item() == 0


@pytest.mark.parametrize("k", [1, 5, 60])
def test_density_factors_are_those_of_the_formulas(k: int) -> None:
    found = points(40, 6, seed=2)
    effective = min(k, len(found) - 1)
    density = [
        1 / (1 + sum(distance for distance, _ in slow_neighbours(found, i, effective)) / (effective + 1))
        for i in range(len(found))
    ]
    wanted = [
        sum(density[place] for _, place in slow_neighbours(found, i, effective)) / effective / density[i]
        for i in range(len(found))
    ]
    np.testing.assert_allclose(density_factors(torch.from_numpy(found), k), wanted, rtol=1e-9)


def test_of_twice_as_many_those_up_to_the_median_are_kept() -> None:
    own, made = points(10, 4, seed=3), np.concatenate([points(10, 4, seed=4), 50 + 20 * points(10, 4, seed=5)])
    kept = least_apart(torch.from_numpy(own), torch.from_numpy(made), 5, 10)
    factors = density_factors(torch.from_numpy(np.concatenate([own, made])), 5)[10:].numpy()
    assert len(kept) == 10 and sorted(kept.tolist()) == kept.tolist()
    assert max(factors[kept.tolist()]) <= np.median(factors)


@pytest.mark.parametrize(
    ("labels", "needed"),
    [([0] * 6 + [1] * 10 + [2] * 3, 5), ([0] * 6 + [1] * 2, 4), ([2, 2], 0), ([0, 1], 0), ([0] * 3 + [2] * 9, 0)],
)
def test_the_need_is_the_mean_of_the_other_classes_less_the_own_count(labels: list[int], needed: int) -> None:
    skewed = 2 if labels.count(2) else 1
    assert num_needed(np.array(labels), skewed) == needed


def test_the_restricted_softmax_is_that_of_the_formula() -> None:
    counts, alpha = [30, 0, 15], 0.3
    logits, labels = points(5, 3, seed=6), [0, 2, 2, 0, 1]
    wanted = 0.0
    for row, label in zip(logits, labels, strict=True):
        scaled = [(alpha + (1 - alpha) * count / max(counts)) * logit for count, logit in zip(counts, row, strict=True)]
        wanted -= math.log(math.exp(scaled[label]) / sum(map(math.exp, scaled))) / len(labels)
    scales = restriction(torch.tensor(counts, dtype=torch.float64), alpha)
    found = nn.functional.cross_entropy(scales * torch.from_numpy(logits), torch.tensor(labels))
    assert float(found) == pytest.approx(wanted, rel=1e-6)


def test_moons_term_is_that_of_the_formula() -> None:
    own, common, previous = (points(7, 5, seed=seed) for seed in (1, 2, 3))

    def similarity(one: Any, other: Any) -> float:
        return math.fsum(a * b for a, b in zip(one, other, strict=True)) / math.hypot(*one) / math.hypot(*other)

    wanted = 0.0
    for i in range(7):
        near, far = (math.exp(similarity(own[i], other[i]) / 0.5) for other in (common, previous))
        wanted -= math.log(near / (near + far)) / 7
    found = contrast(torch.from_numpy(own), torch.from_numpy(common), torch.from_numpy(previous), 0.5)
    assert float(found) == pytest.approx(wanted, rel=1e-9)


def slow_distance(own: list[Any], target: list[Any]) -> float:
    total = 0.0
    for one, other in zip(own, target, strict=True):
        if one.ndim > 1:
            for a, b in zip(one.reshape(len(one), -1), other.reshape(len(other), -1), strict=True):
                total += 1 - float(np.dot(a, b)) / float(np.linalg.norm(a)) / float(np.linalg.norm(b))
    return total


def softmax_gradients(w: Any, b: Any, x: Any, y: Any) -> list[Any]:
    """Of mean cross-entropy of a linear model."""
    logits = x @ w.T + b
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    return [p.T @ x / len(y), p.mean(axis=0)]


def test_a_step_of_distillation_goes_down_the_distance_of_the_gradients() -> None:
    """Against finite differences of the distance, for a linear model whose gradients are known."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(8, 3)).astype(np.float32), np.array([0, 0, 0, 0, 0, 0, 0, 1])
    task = Classifier(Dataset(x, y, x[:0], y[:0]))
    model = nn.Sequential(nn.Flatten(), nn.Linear(3, 2))
    w, b = rng.normal(size=(2, 3)), rng.normal(size=2)
    model[1].weight.data, model[1].bias.data = torch.from_numpy(w).float(), torch.from_numpy(b).float()
    how: dict[str, Any] = {"share": 0.1, "real_batch": 100, "image_learning_rate": 0.05}
    ((begun, _), (moved, labels)) = (
        distil(task, model, QuickDrop(distillation_epochs=steps, **how), 7, CPU) for steps in (0, 1)
    )
    assert labels.tolist() == [0, 1]
    np.testing.assert_array_equal(moved[1], x[7])  # a class with one sample keeps it
    assert any(np.array_equal(begun[0], sample) for sample in x[:7])
    target = softmax_gradients(w, b, x[:7].astype(np.float64), y[:7])

    def distance(image: Any) -> float:
        return slow_distance(softmax_gradients(w, b, image[None], y[:1]), target)

    start, step = begun[0].astype(np.float64), 1e-5
    slope = np.array([(distance(start + step * e) - distance(start - step * e)) / (2 * step) for e in np.eye(3)])
    np.testing.assert_allclose(moved[0], start - 0.05 * slope, rtol=1e-3, atol=1e-4)


def test_gradients_are_compared_row_by_row() -> None:
    own = [points(4, 3, seed=1), points(1, 4, seed=2)[0], points(2, 6, seed=3).reshape(2, 3, 2)]
    target = [points(4, 3, seed=4), points(1, 4, seed=5)[0], points(2, 6, seed=6).reshape(2, 3, 2)]
    found = gradient_distance([torch.from_numpy(g) for g in own], [torch.from_numpy(g) for g in target])
    assert float(found) == pytest.approx(slow_distance(own, target), rel=1e-9)


SPEC = ModelSpec(name="mlp", params={"input_shape": [4], "num_classes": 4, "hidden": [6]})


def slow_accuracies(weights: Path, x: Any, y: Any) -> dict[int, float]:
    model = build(SPEC, seed=0)
    load_weights(model, StoredFile(weights))
    right: dict[int, list[bool]] = {}
    for sample, label in zip(x, y.tolist(), strict=True):
        with torch.no_grad():
            guess = int(model(torch.from_numpy(sample)[None]).argmax())
        right.setdefault(label, []).append(guess == label)
    return {label: sum(found) / len(found) for label, found in right.items()}


def test_the_class_that_is_found_is_the_one_whose_accuracy_fell_most(tmp_path: Path) -> None:
    x, y = points(60, 4, seed=9).astype(np.float32), np.random.default_rng(1).integers(0, 3, 60)
    save_tensors(tmp_path / "data", {"x": torch.from_numpy(x), "y": torch.from_numpy(y)})
    for name, seed in (("before", 1), ("after", 2)):
        save_tensors(tmp_path / name, build(SPEC, seed=seed).state_dict())
    files = {name: tmp_path / name for name in ("before", "after", "data")}
    params = {"model": SPEC.model_dump(), **{name: name for name in files}, "batch_size": 7}
    found = over_files(find_class, params, files, tmp_path / "out")
    before, after = slow_accuracies(files["before"], x, y), slow_accuracies(files["after"], x, y)
    worst = max(before, key=lambda label: (before[label] - after[label], -label))
    wanted = {"skewed_class": worst, "accuracy_before": before[worst], "accuracy_after": after[worst]}
    assert found == pytest.approx(wanted)
    same = over_files(find_class, {**params, "after": "before"}, files, tmp_path / "out")
    assert same == {}, "where nothing fell, nothing is found"
