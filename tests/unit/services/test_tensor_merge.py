from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.tensors import codec, slices
from services.tensors.errors import KernelFailed
from services.tensors.merge import merge_models, stack_models
from services.tensors.streams import StoredFile
from tests.support.kernels import over_files

Tensors = dict[str, np.ndarray[Any, Any]]


def store(folder: Path, models: list[Tensors]) -> dict[str, Path]:
    for index, model in enumerate(models):
        codec.write_file(folder / f"m{index}", model)
    return {f"m{index}": folder / f"m{index}" for index in range(len(models))}


def merged(folder: Path, models: list[Tensors], weights: list[float], **options: Any) -> Tensors:
    listed = [{"digest": f"m{index}", "weight": weight} for index, weight in enumerate(weights)]
    figures = over_files(merge_models, {"models": listed}, store(folder, models), folder / "out", **options)
    assert figures == {"num_models": float(len(weights))}
    return codec.read(StoredFile(folder / "out"))


def stacked(folder: Path, models: list[Tensors], **options: Any) -> Tensors:
    listed = [{"digest": f"m{index}"} for index in range(len(models))]
    over_files(stack_models, {"models": listed}, store(folder, models), folder / "out", **options)
    return codec.read(StoredFile(folder / "out"))


def f32(*values: float) -> np.ndarray[Any, Any]:
    return np.array(values, np.float32)


def test_merge_is_the_weighted_average(tmp_path: Path) -> None:
    assert merged(tmp_path, [{"w": f32(4, 0)}, {"w": f32(0, 8)}], [1, 3])["w"].tolist() == [1.0, 6.0]


def test_merge_of_one_model_is_that_model(tmp_path: Path) -> None:
    model: Tensors = {
        "w": np.random.default_rng(0).standard_normal((7, 5)).astype(np.float32),
        "n": np.array([3]),
        "s": np.array(0.3, np.float32),
    }
    merged(tmp_path, [model], [0.3])
    assert (tmp_path / "out").read_bytes() == (tmp_path / "m0").read_bytes()


def test_a_model_of_weight_zero_leaves_no_trace(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    models: list[Tensors] = [{"w": rng.standard_normal(9).astype(np.float32)} for _ in range(2)]
    merged(tmp_path, models, [1.0, 0.0])
    assert (tmp_path / "out").read_bytes() == (tmp_path / "m0").read_bytes()


def test_integer_tensors_are_those_of_the_first_model(tmp_path: Path) -> None:
    models: list[Tensors] = [{"w": f32(k), "n": np.array([k, k + 1]), "flag": np.array(k == 1)} for k in (1, 2)]
    new = merged(tmp_path, models, [1, 1], slice_elements=1)
    assert (new["n"].tolist(), bool(new["flag"]), new["w"].tolist()) == ([1, 2], True, [1.5])


def test_a_model_listed_twice_counts_twice(tmp_path: Path) -> None:
    inputs = store(tmp_path, [{"w": f32(3)}, {"w": f32(0)}])
    listed = [{"digest": name, "weight": 1.0} for name in ("m0", "m0", "m1")]
    over_files(merge_models, {"models": listed}, inputs, tmp_path / "out")
    assert codec.read(StoredFile(tmp_path / "out"))["w"].tolist() == [2.0]


def test_bfloat16_is_averaged_and_rounded_to_nearest_even(tmp_path: Path) -> None:
    def bf16(*values: float) -> np.ndarray[Any, Any]:
        return (np.array(values, np.float32).view(np.uint32) >> 16).astype(np.uint16).view(codec.BF16)

    new = merged(tmp_path, [{"w": bf16(256, 258)}, {"w": bf16(258, 260)}], [1, 1])
    assert new["w"]["bits"].tolist() == bf16(256, 260)["bits"].tolist()  # 257 and 259 lie between two bfloat16


@pytest.mark.parametrize("max_open_files", [1, 256])
def test_neither_slices_nor_open_files_change_the_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_open_files: int
) -> None:
    monkeypatch.setattr(slices, "MAX_OPEN_FILES", max_open_files)
    rng = np.random.default_rng(1)
    models: list[Tensors] = [
        {"w": rng.standard_normal((13, 17)).astype(np.float32), "b": rng.standard_normal(5)} for _ in range(3)
    ]
    found, found_stacks = set(), set()
    for slice_elements in (1, 7, 64, 1 << 16):
        merged(tmp_path, models, [0.1, 0.2, 0.7], slice_elements=slice_elements)
        found.add((tmp_path / "out").read_bytes())
        stacked(tmp_path, models, slice_elements=slice_elements)
        found_stacks.add((tmp_path / "out").read_bytes())
    assert (len(found), len(found_stacks)) == (1, 1)


@pytest.mark.parametrize(
    "weights", [[], [0.0], [0.0, 0.0], [2.0, -1.0], [float("nan")], [float("inf")], [1e308, 1e308]]
)
def test_weights_that_give_no_average_are_refused(tmp_path: Path, weights: list[float]) -> None:
    with pytest.raises(KernelFailed, match="no average"):
        merged(tmp_path, [{"w": f32(1)}] * len(weights), weights)


def test_result_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KernelFailed, match="NaN or Inf"):
        merged(tmp_path, [{"w": f32(1)}, {"w": f32(np.inf)}], [1, 1])


@pytest.mark.parametrize(
    "other", [{}, {"w": f32(1)}, {"w": np.zeros(2)}, {"v": f32(1, 1)}, {"w": np.zeros(2, np.int32)}]
)
def test_models_of_different_layouts_are_refused(tmp_path: Path, other: Tensors) -> None:
    with pytest.raises(KernelFailed, match="layout"):
        merged(tmp_path, [{"w": f32(1, 2)}, other], [1.0, 1.0])
    with pytest.raises(KernelFailed, match="layout"):
        stacked(tmp_path, [{"w": f32(1, 2)}, other])


def test_a_stack_is_numpys_stack(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    models: list[Tensors] = [
        {
            "w": rng.standard_normal((3, 4)).astype(np.float16),
            "n": rng.integers(0, 9, 5),
            "s": np.array(k, np.float32),
            "empty": np.zeros((0, 2), np.float32),
        }
        for k in range(3)
    ]
    new = stacked(tmp_path, models, slice_elements=5)
    assert set(new) == set(models[0])
    for name, array in new.items():
        expected = np.stack([model[name] for model in models])
        assert (array.shape, array.dtype) == (expected.shape, expected.dtype)
        assert array.tobytes() == expected.tobytes()


def test_a_stack_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KernelFailed, match="no models"):
        stacked(tmp_path, [])


def test_a_stack_beyond_the_greatest_rank_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KernelFailed, match="axes"):
        stacked(tmp_path, [{"w": np.zeros((1,) * 32, np.float32)}])
