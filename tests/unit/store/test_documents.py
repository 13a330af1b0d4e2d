"""JSON columns hold finite numbers, whatever was written to them."""

from __future__ import annotations

import json
from math import inf, nan
from typing import Any

import pytest

from coordinator.store.documents import from_text, to_text


@pytest.mark.parametrize("value", [{}, [1, 2.5, "ü"], {"a": None}, {"1": [True]}, {"a": 2**64 - 1}, {"a": -(2**63)}])
def test_finite_values_are_read_as_they_were_written(value: Any) -> None:
    assert from_text(to_text(value)) == value


@pytest.mark.parametrize("number", [inf, -inf, nan])
def test_a_number_that_is_not_finite_is_left_out_when_it_is_written(number: float) -> None:
    value = {"loss": number, "accuracy": 0.5, "nothing": None, "all": [1, number]}
    assert json.loads(to_text(value)) == {"accuracy": 0.5, "nothing": None, "all": [1]}
    assert json.loads(to_text({1: {"loss": number}})) == {"1": {}}


@pytest.mark.parametrize("number", ["Infinity", "-Infinity", "NaN", "1" + "0" * 400, "-1" + "0" * 5000])
def test_a_number_that_is_not_finite_is_left_out_when_it_is_read(number: str) -> None:
    assert from_text(f'{{"loss": {number}, "accuracy": 0.5, "seed": {2**63 - 1}}}') == {
        "accuracy": 0.5,
        "seed": 2**63 - 1,
    }


def test_large_floats_that_jsonb_gives_back_as_integers_are_floats() -> None:
    read = from_text(f'{{"loss": 1{"0" * 308}}}')
    assert read == {"loss": 1e308} and isinstance(read["loss"], float)
