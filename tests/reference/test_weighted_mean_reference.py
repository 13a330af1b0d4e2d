"""new = base + scale * sum(w_k * delta_k) / sum(w_k), in exact rational arithmetic, rounded once to the dtype."""

from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.tensors import codec
from services.tensors.aggregate import weighted_step
from services.tensors.streams import StoredFile
from tests.support.kernels import over_files


def exact_step(base: float, deltas: list[float], weights: list[float], scale: float) -> Fraction:
    total = sum((Fraction(weight) for weight in weights), Fraction(0))
    weighted = sum((Fraction(w) * Fraction(d) for w, d in zip(weights, deltas, strict=True)), Fraction(0))
    return Fraction(base) + Fraction(scale) * weighted / total


def run_kernel(base: Any, deltas: list[Any], weights: list[float], scale: float, slice_elements: int) -> Any:
    with TemporaryDirectory() as name:
        folder = Path(name)
        codec.write_file(folder / "b", {"w": base, "count": np.arange(5)})
        for index, update in enumerate(deltas):
            codec.write_file(folder / f"{index}", {"w": update})
        listed = [{"digest": f"{index}", "weight": weight} for index, weight in enumerate(weights)]
        inputs = {"b": folder / "b", **{f"{index}": folder / f"{index}" for index in range(len(deltas))}}
        params = {"base": "b", "updates": listed, "scale": scale}
        over_files(weighted_step, params, inputs, folder / "out", slice_elements=slice_elements)
        new = codec.read(StoredFile(folder / "out"))
        assert new["count"].tolist() == [0, 1, 2, 3, 4]
        return new["w"]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
@given(data=st.data())
def test_kernel_agrees_with_exact_arithmetic(dtype: type, data: st.DataObject) -> None:
    length = data.draw(st.integers(0, 9))
    num_updates = data.draw(st.integers(1, 4))
    numbers = st.floats(-100, 100, width=16)

    def draw_array() -> Any:
        return np.array(data.draw(st.lists(numbers, min_size=length, max_size=length)), dtype=dtype)

    base, deltas = draw_array(), [draw_array() for _ in range(num_updates)]
    weights = data.draw(st.lists(st.floats(0.01, 1000), min_size=num_updates, max_size=num_updates))
    scale = data.draw(st.sampled_from([1.0, 0.5, 0.1]))
    found = run_kernel(base, deltas, weights, scale, data.draw(st.integers(1, 12)))
    assert found.dtype == dtype
    for i in range(length):
        exact = exact_step(float(base[i]), [float(update[i]) for update in deltas], weights, scale)
        # Half a unit in the last place of the dtype, and what float64 loses on the way.
        tolerance = abs(float(exact)) * float(np.finfo(dtype).eps) * 0.51 + 1e-12
        if dtype is np.float16:
            tolerance += float(np.finfo(np.float16).smallest_subnormal)
        assert abs(float(found[i]) - float(exact)) <= tolerance


def test_float32_sums_are_not_accumulated_in_float32() -> None:
    deltas = [np.array([1.0], np.float32)] + [np.array([2.0**-24], np.float32)] * 16
    found = run_kernel(np.zeros(1, np.float32), deltas, [1.0] * 17, 17.0, 1)
    assert found[0] == np.float32(1 + 2.0**-20)
