"""The set-up of `lethe bench recovery`: how the classes are dealt, what is shared, and that it can go on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import recovery, recovery_federation
from benchmarks.recovery_federation import NUM_CLIENTS, SKEWED, Cell, Federation, shares
from benchmarks.recovery_report import markdown
from services.data.dataset import Dataset


@pytest.fixture(autouse=True)
def small_data(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    y = np.repeat(np.arange(10), 60)
    x = (0.1 * draw.random((len(y), 1, 16, 16)) + np.eye(10, 256)[y].reshape(-1, 1, 16, 16)).astype(np.float32)
    monkeypatch.setattr(recovery_federation, "load", lambda source, folders: Dataset(x, y, x, y))


def cell(alpha: float = 0.9) -> Cell:
    return Cell("usps", alpha, seed=1, samples=None, rounds=1, encoder_epochs=1, folders=())


@pytest.mark.parametrize("alpha", recovery.ALPHAS)
def test_the_leaver_has_its_part_of_the_class_and_as_many_samples_as_the_others(alpha: float) -> None:
    dealt = shares(cell(alpha))
    sizes = [len(y) for _, y in dealt.clients]
    of_the_class = [int((y == SKEWED).sum()) for _, y in dealt.clients]
    assert max(sizes) - min(sizes) <= 10, "rounded for each class"
    assert of_the_class[0] == round(alpha * sum(of_the_class))
    assert max(of_the_class[1:]) - min(of_the_class[1:]) <= 1
    assert sum(sizes) + len(dealt.held_out[1]) == 600 and len(sizes) == NUM_CLIENTS


def test_the_ablation_without_samples_that_are_made_is_plain_recovery() -> None:
    torch.set_num_threads(1)
    federation = Federation(cell())
    start, _, _ = federation.trained()
    *_, plain = federation.recovered(start, "plain", {})
    *_, ablated = federation.recovered(start, "imba_ulrc", {"skewed_class": SKEWED, "oversample": False})
    assert all(torch.equal(plain[name], ablated[name]) for name in plain)


def test_cells_that_are_kept_are_not_played_again(tmp_path: Path) -> None:
    row = {"dataset": "usps", "alpha": 0.9, "method": "plain", "seed": 1, "phase": "recovered", "samples": None}
    recovery.keep(tmp_path / "report", [{**row, "skewed_accuracy": 0.5, "balanced_accuracy": 0.6}])
    rows = recovery.kept(tmp_path / "report")
    assert recovery.is_done(cell(), rows) and not recovery.is_done(cell(0.8), rows)
    assert recovery.kept(None) == recovery.kept(tmp_path) == []
    assert "50.0" in markdown(rows)
