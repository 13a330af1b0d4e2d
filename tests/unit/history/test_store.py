from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.core import digests
from services.core.errors import Rejected
from services.history import coding
from services.history.spec import UpdateHistory
from services.history.store import Kept, keep, restore
from services.tensors import codec
from services.tensors.streams import FileWriter, StoredFile

RNG = np.random.default_rng(0)


def update(num: int = 150_001) -> dict[str, Any]:
    return {
        "layer.weight": (0.01 * RNG.standard_normal((num // 7, 7))).astype(np.float32),
        "layer.bias": np.array([0.0, -1.5, 3e-6], np.float32),
        "scalar": np.array(0.25, np.float32),
        "empty": np.empty((0, 3), np.float32),
    }


def kept(folder: Path, tensors: dict[str, Any], policy: UpdateHistory) -> Kept:
    codec.write_file(folder / "update", tensors)
    with FileWriter(folder / "stored") as out:
        return keep(StoredFile(folder / "update"), out, policy)


def restored(folder: Path, policy: UpdateHistory) -> dict[str, Any]:
    with FileWriter(folder / "back") as out:
        restore(StoredFile(folder / "stored"), out, policy)
    return codec.read(StoredFile(folder / "back"))


@pytest.mark.parametrize("compression", ["none", "zlib"])
def test_fp32_comes_back_bit_for_bit(compression: Any, tmp_path: Path) -> None:
    policy = UpdateHistory(compression=compression)
    found = kept(tmp_path, update(), policy)
    restored(tmp_path, policy)
    assert (tmp_path / "back").read_bytes() == (tmp_path / "update").read_bytes()
    assert found.largest_error == found.relative_error == 0
    stored = (tmp_path / "stored").read_bytes()
    assert (found.digest, found.num_bytes) == (digests.of_bytes(stored), len(stored))


@pytest.mark.parametrize(("dtype", "bound"), [("bf16", 2**-8), ("fp16", 2**-11)])
def test_half_precision_stays_within_its_rounding_error(dtype: Any, bound: float, tmp_path: Path) -> None:
    policy = UpdateHistory(dtype=dtype)
    tensors = update()
    found = kept(tmp_path, tensors, policy)
    back = restored(tmp_path, policy)
    error = np.abs(back["layer.weight"] - tensors["layer.weight"])
    assert (error <= bound * np.abs(tensors["layer.weight"]) + 2**-25).all()
    assert 0 < found.relative_error < bound


def test_int8_is_off_by_at_most_half_a_step_of_its_block(tmp_path: Path) -> None:
    policy = UpdateHistory(dtype="int8")
    tensors = update()
    found = kept(tmp_path, tensors, policy)
    numbers = tensors["layer.weight"].reshape(-1).astype(np.float64)
    back = restored(tmp_path, policy)["layer.weight"].reshape(-1).astype(np.float64)
    largest = 0.0
    for first in range(0, len(numbers), coding.BLOCK_ELEMENTS):
        block = slice(first, first + coding.BLOCK_ELEMENTS)
        step = np.abs(numbers[block]).max() / 127
        error = np.abs(back[block] - numbers[block]).max()
        assert error <= step / 2 * (1 + 1e-4)
        largest = max(largest, error)
    bias_error = 1.5 / 127 / 2
    assert found.largest_error <= max(largest * (1 + 1e-4), bias_error * (1 + 1e-4))
    assert found.relative_error < 0.02
    assert (tmp_path / "stored").stat().st_size < 0.3 * (tmp_path / "update").stat().st_size


def test_a_block_of_zeros_stays_zero(tmp_path: Path) -> None:
    policy = UpdateHistory(dtype="int8")
    kept(tmp_path, {"w": np.zeros(3000, np.float32)}, policy)
    assert not restored(tmp_path, policy)["w"].any()


def test_an_update_larger_than_a_slice_is_one_stream(tmp_path: Path) -> None:
    tensors = {"w": RNG.standard_normal(3 * coding.SLICE_ELEMENTS + 5).astype(np.float32)}
    policy = UpdateHistory(compression="none")
    kept(tmp_path, tensors, policy)
    assert np.array_equal(restored(tmp_path, policy)["w"], tensors["w"])


@pytest.mark.parametrize("length", [0, 7, 100, -1])
def test_a_copy_that_is_cut_off_is_refused(length: int, tmp_path: Path) -> None:
    policy = UpdateHistory(dtype="bf16", compression="none")
    kept(tmp_path, update(), policy)
    (tmp_path / "stored").write_bytes((tmp_path / "stored").read_bytes()[:length])
    with pytest.raises(Rejected, match="shorter"):
        restored(tmp_path, policy)


def test_a_copy_of_another_policy_is_refused(tmp_path: Path) -> None:
    kept(tmp_path, update(), UpdateHistory(dtype="bf16", compression="none"))
    with pytest.raises(Rejected, match="shorter"):
        restored(tmp_path, UpdateHistory(dtype="fp32", compression="none"))
    with pytest.raises(Rejected, match="longer"):
        restored(tmp_path, UpdateHistory(dtype="int8", compression="none"))


@pytest.mark.parametrize(("value", "dtype"), [(np.nan, "fp32"), (1e6, "fp16"), (np.inf, "int8")])
def test_numbers_that_the_dtype_cannot_hold_are_refused(value: float, dtype: Any, tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="not-finite"):
        kept(tmp_path, {"w": np.array([1, value], np.float32)}, UpdateHistory(dtype=dtype))
