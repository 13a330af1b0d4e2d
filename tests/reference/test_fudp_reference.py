"""FUDP's scores and choice in plain Python, one number at a time, against the client and the kernel."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from services.data.dataset import Dataset
from services.models.build import build
from services.tensors import codec
from services.tensors.streams import StoredFile
from services.training.local import delta, snapshot
from services.training.task import Classifier
from services.unlearning.fudp.client import rate_channels, tf_idf
from services.unlearning.fudp.kernels import choose, prune_channels
from services.wire.v1.runs import ModelSpec
from tests.support.kernels import over_files

CPU = torch.device("cpu")
NUM_CLASSES = 4


def spec(name: str) -> ModelSpec:
    side = 12 if name == "lenet5" else 8
    return ModelSpec(name=name, params={"input_shape": [1, side, side], "num_classes": NUM_CLASSES})


def data(name: str, seed: int, num_samples: int = 40) -> Dataset:
    rng, shape = np.random.default_rng(seed), spec(name).params["input_shape"]
    labels = rng.integers(0, NUM_CLASSES, num_samples)
    inputs = rng.random((num_samples, *shape), np.float32) + labels[:, None, None, None].astype(np.float32) / 3
    return Dataset(inputs, labels, inputs[:4], labels[:4])


def slow_scores(means: list[list[float]], of: int) -> list[float]:
    """`means[j][c]`: of channel j for class c."""
    num_channels, num_classes = len(means), len(means[0])
    total = sum(means[j][of] for j in range(num_channels))
    scores = []
    for j in range(num_channels):
        tf = means[j][of] / total if total else 0.0
        num_used_by = 0
        for c in range(num_classes):
            usual = sum(means[i][c] for i in range(num_channels)) / num_channels
            num_used_by += means[j][c] >= usual
        scores.append(tf * math.log(num_classes / (1 + num_used_by)))
    return scores


def slow_means(model: nn.Module, layer: int, own: Dataset) -> list[list[float]]:
    """The channels of the layer-th convolution of a sequence, one sample at a time."""
    modules = list(model.children())
    places = [number for number, module in enumerate(modules) if isinstance(module, nn.Conv2d)]
    end = places[layer] + 1
    if isinstance(modules[end], nn.GroupNorm):
        end += 1
    num_channels = len(model.state_dict()[f"{places[layer]}.weight"])
    sums = [[0.0] * NUM_CLASSES for _ in range(num_channels)]
    counts = [0] * NUM_CLASSES
    for sample, label in zip(own.x_train, own.y_train, strict=True):
        out = torch.from_numpy(sample)[None]
        with torch.no_grad():
            for module in modules[:end]:
                out = module(out)
        counts[label] += 1
        for channel, positions in enumerate(out[0].flatten(1).tolist()):
            sums[channel][label] += sum(max(0.0, value) for value in positions) / len(positions)
    return [[total / count for total, count in zip(row, counts, strict=True)] for row in sums]


@given(
    st.lists(st.lists(st.integers(0, 40), min_size=3, max_size=3), min_size=1, max_size=8).filter(
        lambda rows: len(rows) in (1, 2, 4, 8)  # their means are exact, so that both sides compare alike
    ),
    st.integers(min_value=0, max_value=2),
)
def test_scores_are_those_of_the_formula(eighths: list[list[int]], of: int) -> None:
    means = [[value / 8 for value in row] for row in eighths]
    found = tf_idf(torch.tensor(means, dtype=torch.float64), of).tolist()
    assert found == pytest.approx(slow_scores(means, of), abs=1e-12)


@pytest.mark.parametrize("name", ["lenet5", "cnn"])
def test_what_a_client_sends_are_its_scores_in_the_filters_and_nothing_else(name: str) -> None:
    own, model = data(name, seed=3), build(spec(name), seed=1)
    before = snapshot(model)
    expected = [slow_scores(slow_means(model, layer, own), 2) for layer in (0, 1)]
    figures = rate_channels(Classifier(own), model, 2, CPU)
    assert figures == {"class_samples": float((own.y_train == 2).sum()), "num_samples": float((own.y_train == 2).sum())}
    sent = {key: value.double() for key, value in delta(before, model.state_dict()).items()}
    filters = [key for key, value in sent.items() if value.ndim == 4]
    for key, scores in zip(sorted(filters, key=lambda key: int(key.split(".")[0])), expected, strict=True):
        for channel, score in enumerate(scores):
            assert sent[key][channel].flatten().tolist() == pytest.approx(
                [score] * sent[key][channel].numel(), abs=1e-6
            )
    assert not any(bool(value.any()) for key, value in sent.items() if key not in filters)


def slow_choice(scores: dict[str, list[float]], ratio: float) -> set[tuple[str, int]]:
    """One at a time: the best that is left, as long as it is above 0 and is not the last of its layer."""
    wanted = max(1, round(ratio * sum(len(of_layer) for of_layer in scores.values())))
    chosen: set[tuple[str, int]] = set()
    while len(chosen) < wanted:
        left = {name: [j for j in range(len(found)) if (name, j) not in chosen] for name, found in scores.items()}
        able = [(name, j) for name, channels in left.items() for j in channels if len(channels) > 1]
        able = [(name, j) for name, j in able if scores[name][j] > 0]
        if not able:
            break
        chosen.add(min(able, key=lambda one: (-scores[one[0]][one[1]], one)))
    return chosen


layers = st.dictionaries(
    st.sampled_from(["0.weight", "3.weight", "6.weight"]),
    st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.25, 0.5, 0.75, 1.0]), min_size=1, max_size=6),
    min_size=1,
)


@given(layers, st.floats(0.01, 0.99))
def test_the_most_telling_channels_are_chosen_over_all_layers(scores: dict[str, list[float]], ratio: float) -> None:
    found = choose({name: np.array(values) for name, values in scores.items()}, ratio)
    assert set(found) == slow_choice(scores, ratio) and len(found) == len(set(found))


def test_pruned_channels_are_zero_with_bias_and_norm_and_all_else_stays(tmp_path: Path) -> None:
    model = build(spec("cnn"), seed=1)
    weights = {key: value.numpy() for key, value in model.state_dict().items()}
    files: dict[str, dict[str, Any]] = {"model": weights}
    scores: list[dict[str, Any]] = []
    for number in range(2):
        twin = build(spec("cnn"), seed=1)
        figures = rate_channels(Classifier(data("cnn", seed=number, num_samples=30 + 10 * number)), twin, 1, CPU)
        sent = delta(snapshot(model), twin.state_dict())
        files[f"of-{number}"] = {key: value.numpy() for key, value in sent.items()}
        scores.append({"digest": f"of-{number}", "weight": figures["class_samples"]})
    for name, tensors in files.items():
        codec.write_file(tmp_path / name, tensors)
    params: dict[str, Any] = {"model": "model", "scores": scores, "ratio": 0.1}
    places = {name: tmp_path / name for name in files}
    figures = over_files(prune_channels, params, places, tmp_path / "out", slice_elements=100)
    assert figures == {"num_channels": 96.0, "num_pruned": 10.0}
    total = sum(one["weight"] for one in scores)
    mean: dict[str, list[float]] = {}
    for key in ("0.weight", "4.weight"):
        sent_by = [files[one["digest"]][key].astype(float) for one in scores]
        mean[key] = [
            sum(one["weight"] * float(rows[channel].mean()) for one, rows in zip(scores, sent_by, strict=True)) / total
            for channel in range(len(weights[key]))
        ]
    chosen = slow_choice(mean, 0.1)
    assert len(chosen) == 10
    found = codec.read(StoredFile(tmp_path / "out"))
    for key, before in weights.items():
        module = int(key.split(".")[0])
        layer = {0: "0.weight", 1: "0.weight", 4: "4.weight", 5: "4.weight"}.get(module)
        expected = before.copy()
        for name, channel in chosen:
            if name == layer:
                expected[channel] = 0.0
        assert np.array_equal(found[key], expected), key
    over_files(prune_channels, params, places, tmp_path / "whole")
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "out").read_bytes(), "the slices' size matters"
