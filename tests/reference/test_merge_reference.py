"""merged = sum(w_k * model_k) / sum(w_k), in exact rational arithmetic, rounded once to the dtype."""

from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.tensors import codec
from services.tensors.merge import merge_models
from services.tensors.streams import StoredFile
from tests.support.kernels import over_files


def exact_average(values: list[float], weights: list[float]) -> Fraction:
    weighted = sum((Fraction(w) * Fraction(v) for w, v in zip(weights, values, strict=True)), Fraction(0))
    return weighted / sum((Fraction(weight) for weight in weights), Fraction(0))


def run_kernel(models: list[Any], weights: list[float], slice_elements: int) -> Any:
    with TemporaryDirectory() as name:
        folder = Path(name)
        for index, model in enumerate(models):
            codec.write_file(folder / f"{index}", {"w": model})
        listed = [{"digest": f"{index}", "weight": weight} for index, weight in enumerate(weights)]
        inputs = {f"{index}": folder / f"{index}" for index in range(len(models))}
        over_files(merge_models, {"models": listed}, inputs, folder / "out", slice_elements=slice_elements)
        return codec.read(StoredFile(folder / "out"))["w"]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
@given(data=st.data())
def test_merge_agrees_with_exact_arithmetic(dtype: type, data: st.DataObject) -> None:
    length = data.draw(st.integers(0, 9))
    num_models = data.draw(st.integers(1, 4))
    numbers = st.lists(st.floats(-100, 100, width=16), min_size=length, max_size=length)
    models: list[Any] = [np.array(data.draw(numbers), dtype=dtype) for _ in range(num_models)]
    weights = data.draw(st.lists(st.floats(0.01, 1000), min_size=num_models, max_size=num_models))
    found = run_kernel(models, weights, data.draw(st.integers(1, 12)))
    assert found.dtype == dtype
    for i in range(length):
        exact = exact_average([float(model[i]) for model in models], weights)
        # Half a unit in the last place of the dtype, and what float64 loses on the way.
        tolerance = abs(float(exact)) * float(np.finfo(dtype).eps) * 0.51 + 1e-12
        if dtype is np.float16:
            tolerance += float(np.finfo(np.float16).smallest_subnormal)
        assert abs(float(found[i]) - float(exact)) <= tolerance
