"""The methods' formulas in plain Python, one number at a time, against the kernels and the clients' losses."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from services.program.contract import Movement
from services.tensors import codec
from services.tensors.aggregate import weighted_step
from services.tensors.streams import StoredFile
from services.training.local_spec import LocalTraining
from services.unlearning.federaser.kernels import calibrate_update
from services.unlearning.fedforget.client import forgetting_loss
from services.unlearning.fedforget.plan import leaver_factor
from services.unlearning.fedforget.spec import Distil, FedForget
from services.unlearning.fedrecovery.kernels import accumulate_residuals, remove_residuals
from services.unlearning.negation.kernels import negate_layers
from services.unlearning.pga.client import project
from services.unlearning.pga.kernels import pga_reference
from services.unlearning.sifu.bound import hidden_by_noise, movement_by_round
from services.unlearning.sifu.kernels import measure_distances
from tests.support.kernels import over_files

Tensors = dict[str, Any]
DIGEST = "sha256:" + "0" * 64


def f32(*values: float) -> Any:
    return np.array(values, np.float32)


def store(folder: Path, files: dict[str, Tensors]) -> dict[str, Path]:
    for name, tensors in files.items():
        codec.write_file(folder / name, tensors)
    return {name: folder / name for name in files}


# --- FedEraser --------------------------------------------------------------------------------------------------------


def test_federaser_calibrates_a_case_worked_out_by_hand(tmp_path: Path) -> None:
    """‖Δ‖ = 10 and Δ̃ = (3, 4) of length 5 give (6, 8); ‖Δ‖ = 1 and Δ̃ = (0, -2) give (0, -1)."""
    files: dict[str, Tensors] = {
        "model": {"a": f32(1, 1), "b": f32(0, 0), "steps": np.array([7])},
        "stored": {"a": f32(-8, 6), "b": f32(1, 0)},
        "new": {"a": f32(3, 4), "b": f32(0, -2)},
    }
    params = {"model": "model", "update": "new", "stored": ["stored"]}
    figures = over_files(calibrate_update, params, store(tmp_path, files), tmp_path / "out")
    found = codec.read(StoredFile(tmp_path / "out"))
    assert found["a"].tolist() == [6, 8]
    assert found["b"].tolist() == [0, -1]
    assert figures["num_zero_norm"] == 0
    assert figures["calibrated_norm"] == pytest.approx(math.sqrt(101))


def test_federasers_step_is_the_weighted_mean_of_calibrated_updates(tmp_path: Path) -> None:
    """w = (1, 1); Δ̂ of k = (6, 8) with n = 1, of l = (0, 4) with n = 3: w + (1.5, 5) = (2.5, 6)."""
    files: dict[str, Tensors] = {
        "w": {"a": f32(1, 1)},
        "stored-k": {"a": f32(0, 10)},
        "new-k": {"a": f32(3, 4)},
        "stored-l": {"a": f32(4, 0)},
        "new-l": {"a": f32(0, 9)},
    }
    inputs = store(tmp_path, files)
    for client in "kl":
        params = {"model": "w", "update": f"new-{client}", "stored": [f"stored-{client}"]}
        over_files(calibrate_update, params, inputs, tmp_path / f"hat-{client}")
        inputs[f"hat-{client}"] = tmp_path / f"hat-{client}"
    updates = [{"digest": "hat-k", "weight": 1.0}, {"digest": "hat-l", "weight": 3.0}]
    over_files(weighted_step, {"base": "w", "updates": updates, "scale": 1.0}, inputs, tmp_path / "out")
    assert codec.read(StoredFile(tmp_path / "out"))["a"].tolist() == [2.5, 6]


def test_a_client_without_a_stored_update_gets_the_rounds_median_length(tmp_path: Path) -> None:
    stored: dict[str, Tensors] = {"s1": {"a": f32(1, 0)}, "s2": {"a": f32(0, 5)}, "s3": {"a": f32(100, 0)}}
    inputs = store(tmp_path, {"model": {"a": f32(0, 0)}, "new": {"a": f32(0, -2)}, **stored})
    over_files(
        calibrate_update, {"model": "model", "update": "new", "stored": ["s1", "s2", "s3"]}, inputs, tmp_path / "out"
    )
    assert codec.read(StoredFile(tmp_path / "out"))["a"].tolist() == [0, -5]


# --- PGA --------------------------------------------------------------------------------------------------------------


def test_pgas_reference_is_the_model_that_the_round_makes_without_the_leaver(tmp_path: Path) -> None:
    """(W·w − n_u·w_u) / (W − n_u), number by number."""
    rng = np.random.default_rng(1)
    base = rng.standard_normal(11)
    deltas, samples = rng.standard_normal((3, 11)), [10, 30, 60]
    total = sum(samples)
    head = base + sum(n * d for n, d in zip(samples, deltas, strict=True)) / total
    leaver = 1
    expected = [
        (total * head[i] - samples[leaver] * (base[i] + deltas[leaver][i])) / (total - samples[leaver])
        for i in range(11)
    ]
    inputs = store(tmp_path, {"head": {"w": head}, "base": {"w": base}, "delta": {"w": deltas[leaver]}})
    params = {"head": "head", "base": "base", "scale": 1.0, "leavers": [{"digest": "delta", "share": 0.3}]}
    figures = over_files(pga_reference, params, inputs, tmp_path / "out", slice_elements=4)
    found = codec.read(StoredFile(tmp_path / "out"))["w"]
    assert found == pytest.approx(np.array(expected), rel=1e-12)
    assert figures["reference_distance"] == pytest.approx(float(np.linalg.norm(found - head)))


def test_pgas_reference_without_two_leavers_is_the_mean_of_the_rest_also_with_a_server_learning_rate(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(2)
    base, deltas = rng.standard_normal(5), rng.standard_normal((4, 5))
    weights, scale = [1.0, 2.0, 3.0, 4.0], 0.7
    head = base + scale * sum(w * d for w, d in zip(weights, deltas, strict=True)) / 10
    inputs = store(tmp_path, {"head": {"w": head}, "base": {"w": base}, "d0": {"w": deltas[0]}, "d3": {"w": deltas[3]}})
    leavers = [{"digest": "d0", "share": 0.1}, {"digest": "d3", "share": 0.4}]
    over_files(
        pga_reference, {"head": "head", "base": "base", "scale": scale, "leavers": leavers}, inputs, tmp_path / "out"
    )
    expected = base + scale * (2 * deltas[1] + 3 * deltas[2]) / 5
    assert codec.read(StoredFile(tmp_path / "out"))["w"] == pytest.approx(expected, rel=1e-12)


@given(st.lists(st.floats(-100, 100, width=32), min_size=4, max_size=4), st.floats(0.1, 50))
def test_pgas_projection_is_the_nearest_point_of_the_ball(values: list[float], radius: float) -> None:
    origin = [1.0, -2.0, 0.5, 3.0]
    params, reference = (
        [torch.tensor(values[:1]), torch.tensor(values[1:])],
        [
            torch.tensor(origin[:1]),
            torch.tensor(origin[1:]),
        ],
    )
    moved = project(params, reference, radius)
    length = math.sqrt(sum((v - o) ** 2 for v, o in zip(values, origin, strict=True)))
    factor = min(1.0, radius / length) if length else 1.0
    assert moved == (length > radius)
    found = torch.cat(params).tolist()
    for value, start, got in zip(values, origin, found, strict=True):
        assert got == pytest.approx(start + factor * (value - start), rel=1e-5, abs=1e-5)


# --- FedForget --------------------------------------------------------------------------------------------------------


def softmax(logits: list[float], temperature: float) -> list[float]:
    powers = [math.exp(z / temperature) for z in logits]
    return [power / sum(powers) for power in powers]


def kl(p: list[float], q: list[float]) -> float:
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


LOGITS = [[2.0, -1.0, 0.5], [0.1, 0.2, -3.0]]
FROM_A = [[3.0, 0.0, -1.0], [1.0, 4.0, 0.0]]
FROM_B = [[-5.0, 6.0, 5.0], [0.0, 0.5, 0.2]]
LABELS = [0, 2]


@pytest.mark.parametrize("teacher", ["global", "quasi_competent"])
@pytest.mark.parametrize("with_b", [True, False])
def test_fedforgets_loss_is_the_formulas(teacher: Any, with_b: bool) -> None:
    alpha, lambda_neg, tau, cap = 0.9, 3.0, 2.0, math.log(3)
    expected = []
    for logits, a, b, label in zip(LOGITS, FROM_A, FROM_B, LABELS, strict=True):
        taught = [min(a) if i == label and teacher == "quasi_competent" else z for i, z in enumerate(a)]
        student = softmax(logits, tau)
        term = kl(softmax(b, tau), student) if with_b else -math.log(softmax(logits, 1.0)[label])
        keep = tau**2 * kl(softmax(taught, tau), student)
        expected.append(alpha * keep - (1 - alpha) * lambda_neg * min(term, cap))
    work = Distil(
        alpha=alpha, lambda_neg=lambda_neg, temperature=tau, teacher=teacher, local=LocalTraining(), teacher_a=DIGEST
    )
    found = forgetting_loss(
        torch.tensor(LOGITS, dtype=torch.float64),
        torch.tensor(LABELS),
        torch.tensor(FROM_A),
        torch.tensor(FROM_B) if with_b else None,
        work,
    )
    assert float(found) == pytest.approx(sum(expected) / len(expected), rel=1e-5)


def test_fedforgets_factor_starts_at_lambda_0_and_has_lost_nine_tenths_of_its_excess_after_all_rounds() -> None:
    spec = FedForget(lambda_0=2.0, rounds=10)
    assert leaver_factor(spec, 0) == 2.0
    assert leaver_factor(spec, 10) == pytest.approx(1.1)
    assert leaver_factor(spec, 3) == pytest.approx(1 + math.exp(-0.3 * math.log(10)))


# --- FedRecovery ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slice_elements", [3, 1000])
def test_fedrecoverys_running_sums_give_what_the_whole_history_gives(tmp_path: Path, slice_elements: int) -> None:
    """Direct: w − Σ p_i δ_i with p_i ∝ ‖∇F(w_i)‖² and δ_i = (η/n)·[mean of the others' gradients − the leaver's],
    where η·gradient = −Δ and all weights are equal. A client that sits a round out contributes nothing there."""
    rng = np.random.default_rng(3)
    rounds = [["a", "b", "c"], ["b", "c"], ["a", "c"], ["a", "b", "c"]]
    updates = [{name: rng.standard_normal(7).astype(np.float32) for name in members} for members in rounds]
    head = rng.standard_normal(7).astype(np.float32)
    inputs = store(tmp_path, {"head": {"w": head, "steps": np.array([4])}})
    residuals: str | None = None
    for number, members in enumerate(rounds):
        listed = []
        for name in members:
            digest = f"{number}-{name}"
            inputs |= store(tmp_path, {digest: {"w": updates[number][name]}})
            listed.append({"client": name, "digest": digest, "weight": 5.0})
        params = {"model": "head", "residuals": residuals, "updates": listed, "scale": 1.0}
        over_files(accumulate_residuals, params, inputs, tmp_path / f"r{number}", slice_elements=slice_elements)
        residuals = f"r{number}"
        inputs[residuals] = tmp_path / residuals
    removal = {"head": "head", "residuals": residuals, "leavers": ["a"], "noise": 0.0, "seed": 1}
    over_files(remove_residuals, removal, inputs, tmp_path / "out", slice_elements=slice_elements)

    expected = head.astype(np.float64)
    steps = [np.mean([u.astype(np.float64) for u in found.values()], axis=0) for found in updates]
    total = sum(float(step @ step) for step in steps)
    for step, found in zip(steps, updates, strict=True):
        if "a" in found:
            others = [-u.astype(np.float64) for name, u in found.items() if name != "a"]
            delta = (np.mean(others, axis=0) + found["a"].astype(np.float64)) / len(found)
            expected = expected - float(step @ step) / total * delta
    found_model = codec.read(StoredFile(tmp_path / "out"))
    assert found_model["w"] == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert found_model["steps"].tolist() == [4]


# --- NoT --------------------------------------------------------------------------------------------------------------


def test_not_negates_the_first_layers_weights_and_nothing_else(tmp_path: Path) -> None:
    model: Tensors = {
        "1.weight": f32(1, -2, 0, 3).reshape(2, 2),
        "1.bias": f32(5, 6),
        "10.weight": f32(7, 8).reshape(1, 2),
        "3.weight": f32(9, 10).reshape(1, 2),
        "2.num_batches_tracked": np.array(3),
    }
    figures = over_files(negate_layers, {"model": "m", "layers": None}, store(tmp_path, {"m": model}), tmp_path / "out")
    found = codec.read(StoredFile(tmp_path / "out"))
    assert found["1.weight"].tolist() == [[-1, 2], [0, -3]]
    assert all(found[name].tolist() == model[name].tolist() for name in model if name != "1.weight")
    assert figures == {"num_negated": 4.0}


# --- SIFU -------------------------------------------------------------------------------------------------------------


def test_sifus_bound_grows_by_the_recurrence() -> None:
    movements = [
        Movement(1, "u", share=0.5, scale=1.0, distance=0.2),
        Movement(3, "u", share=0.2, scale=2.0, distance=0.4),
    ]
    assert movement_by_round(movements, 4, 0.5) == pytest.approx([0, 0.2, 0.1, 0.05 + 2 * 0.25 * 0.4, 0.125])


def test_sifus_threshold_is_the_published_example() -> None:
    assert hidden_by_noise(epsilon=10, delta=1 / 100, sigma=0.05) == pytest.approx(0.161, abs=5e-4)


def test_sifus_distances_are_between_the_new_model_and_each_clients_own(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    base, deltas = rng.standard_normal(6), rng.standard_normal((2, 6))
    inputs = store(tmp_path, {"m": {"w": base}, "a": {"w": deltas[0]}, "b": {"w": deltas[1]}})
    updates = [{"client": "a", "digest": "a", "weight": 1.0}, {"client": "b", "digest": "b", "weight": 3.0}]
    figures = over_files(
        measure_distances, {"model": "m", "updates": updates, "scale": 0.5}, inputs, tmp_path / "out", slice_elements=4
    )
    new = base + 0.5 * (deltas[0] + 3 * deltas[1]) / 4
    for client, delta in zip("ab", deltas, strict=True):
        expected = math.sqrt(sum((n - (b + d)) ** 2 for n, b, d in zip(new, base, delta, strict=True)))
        assert figures[f"distance:{client}"] == pytest.approx(expected, rel=1e-12)
