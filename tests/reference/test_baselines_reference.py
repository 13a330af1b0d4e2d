"""Exact-Fun's step, alpha * nearest integer to x / alpha, in exact rational arithmetic; FATS's budget by counting."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from services.selection.policies import uniform
from services.tensors import codec
from services.tensors.aggregate import weighted_step
from services.tensors.streams import StoredFile
from services.training.fats.spec import Fats
from tests.support.kernels import over_files

small = st.integers(-400, 400).map(lambda n: n / 64)


def exact_step(base: float, deltas: list[float], weights: list[int]) -> Fraction:
    weighted = sum((Fraction(w) * Fraction(d) for w, d in zip(weights, deltas, strict=True)), Fraction(0))
    return Fraction(base) + weighted / sum(weights)


@given(
    base=small,
    deltas=st.lists(small, min_size=1, max_size=4),
    weights=st.lists(st.sampled_from([1, 2, 4, 8]), min_size=4, max_size=4),
    quantum=st.sampled_from([0.5, 0.125, 2.0, 0.0625]),
)
def test_the_quantised_step_agrees_with_exact_arithmetic(
    base: float, deltas: list[float], weights: list[int], quantum: float
) -> None:
    weights = weights[: len(deltas)]
    exact = exact_step(base, deltas, weights)
    is_tie = (exact / Fraction(quantum) * 2) % 2 == 1
    assume(not is_tie or sum(weights).bit_count() == 1)  # else float64 may fall to either side of it
    with TemporaryDirectory() as name:
        folder = Path(name)
        codec.write_file(folder / "b", {"w": np.array([base], np.float64), "steps": np.array([7])})
        for index, delta in enumerate(deltas):
            codec.write_file(folder / f"{index}", {"w": np.array([delta], np.float64)})
        listed = [{"digest": f"{index}", "weight": float(weight)} for index, weight in enumerate(weights)]
        inputs = {"b": folder / "b", **{f"{index}": folder / f"{index}" for index in range(len(deltas))}}
        params = {"base": "b", "updates": listed, "scale": 1.0, "quantum": quantum}
        over_files(weighted_step, params, inputs, folder / "out")
        found = codec.read(StoredFile(folder / "out"))
    assert found["steps"].tolist() == [7], "whole numbers are not rounded to multiples"
    assert not np.signbit(found["w"][0]) or found["w"][0] < 0, "a zero that has a sign"
    assert Fraction(float(found["w"][0])) == round(exact / Fraction(quantum)) * Fraction(quantum)


@pytest.mark.parametrize(("budget", "num_clients", "num_rounds"), [(0.5, 20, 5), (2.0, 10, 10)])
def test_a_client_is_drawn_as_often_as_its_budget_says(budget: float, num_clients: int, num_rounds: int) -> None:
    spec = Fats(algorithm="fats", client_budget=budget).settled(num_clients, num_rounds)
    names = [f"c{i}" for i in range(num_clients)]
    num_seeds, drawn, touched = 300, 0, 0
    for seed in range(num_seeds):
        rounds = [uniform(names, spec.clients_per_round or 0, seed, round) for round in range(num_rounds)]
        drawn += sum("c0" in names for names in rounds)
        touched += any("c0" in names for names in rounds)
    assert drawn / num_seeds == pytest.approx(budget, rel=0.15)
    assert touched / num_seeds <= budget, "P(train again) is at most the budget"
