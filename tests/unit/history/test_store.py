from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.core.errors import Rejected
from services.history import coding
from services.history.sealing import SEGMENT_BYTES
from services.history.spec import UpdateHistory
from services.history.store import Kept, keep, restore
from services.tensors import codec
from services.tensors.streams import FileWriter, StoredFile

KEY, OTHER_KEY, SALT = b"k" * 32, b"o" * 32, b"s" * 32
CONTEXT = b"run/cohort/3/hospital-a"
SEALED = 128 + 32
"""Where the first segment begins: after the header of the file and the salt."""
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
    return keep(StoredFile(folder / "update"), folder / "stored", policy, KEY, SALT, CONTEXT)


def restored(folder: Path, policy: UpdateHistory, digest: str, **changed: Any) -> dict[str, Any]:
    given = {"key": KEY, "context": CONTEXT, **changed}
    with FileWriter(folder / "back") as out:
        restore(folder / "stored", out, policy=policy, digest=digest, **given)
    return codec.read(StoredFile(folder / "back"))


@pytest.mark.parametrize("compression", ["none", "zlib"])
def test_fp32_comes_back_bit_for_bit(compression: Any, tmp_path: Path) -> None:
    policy = UpdateHistory(compression=compression)
    found = kept(tmp_path, update(), policy)
    restored(tmp_path, policy, found.digest)
    assert (tmp_path / "back").read_bytes() == (tmp_path / "update").read_bytes()
    assert found.largest_error == found.relative_error == 0
    assert found.num_bytes == (tmp_path / "stored").stat().st_size


@pytest.mark.parametrize(("dtype", "bound"), [("bf16", 2**-8), ("fp16", 2**-11)])
def test_half_precision_stays_within_its_rounding_error(dtype: Any, bound: float, tmp_path: Path) -> None:
    policy = UpdateHistory(dtype=dtype)
    tensors = update()
    found = kept(tmp_path, tensors, policy)
    back = restored(tmp_path, policy, found.digest)
    error = np.abs(back["layer.weight"] - tensors["layer.weight"])
    assert (error <= bound * np.abs(tensors["layer.weight"]) + 2**-25).all()
    assert 0 < found.relative_error < bound


def test_int8_is_off_by_at_most_half_a_step_of_its_block(tmp_path: Path) -> None:
    policy = UpdateHistory(dtype="int8")
    tensors = update()
    found = kept(tmp_path, tensors, policy)
    numbers = tensors["layer.weight"].reshape(-1).astype(np.float64)
    back = restored(tmp_path, policy, found.digest)["layer.weight"].reshape(-1).astype(np.float64)
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
    found = kept(tmp_path, {"w": np.zeros(3000, np.float32)}, policy)
    assert not restored(tmp_path, policy, found.digest)["w"].any()


def test_an_update_larger_than_a_segment_and_a_slice_is_one_stream(tmp_path: Path) -> None:
    tensors = {"w": RNG.standard_normal(3 * SEGMENT_BYTES + 5).astype(np.float32)}
    policy = UpdateHistory(compression="none")
    assert np.array_equal(restored(tmp_path, policy, kept(tmp_path, tensors, policy).digest)["w"], tensors["w"])


def test_without_the_clients_key_nothing_can_be_read(tmp_path: Path) -> None:
    policy = UpdateHistory()
    found = kept(tmp_path, update(), policy)
    plain = (tmp_path / "update").read_bytes()
    assert plain[2000:2064] not in (tmp_path / "stored").read_bytes()
    with pytest.raises(Rejected, match="key"):
        restored(tmp_path, policy, found.digest, key=OTHER_KEY)


def test_an_update_cannot_be_passed_off_as_another_clients_or_rounds(tmp_path: Path) -> None:
    found = kept(tmp_path, update(), UpdateHistory())
    with pytest.raises(Rejected, match="changed"):
        restored(tmp_path, UpdateHistory(), found.digest, context=b"run/cohort/3/hospital-b")
    with pytest.raises(Rejected, match="changed"):
        restored(tmp_path, UpdateHistory(dtype="bf16"), found.digest)


@pytest.mark.parametrize("damage", ["flip", "cut", "swap"])
def test_damage_is_noticed_by_the_digest_and_again_by_the_seal(damage: str, tmp_path: Path) -> None:
    policy = UpdateHistory(compression="none")
    found = kept(tmp_path, update(), policy)
    stored = bytearray((tmp_path / "stored").read_bytes())
    segment = SEGMENT_BYTES + 16
    if damage == "flip":
        stored[len(stored) // 2] ^= 1
    elif damage == "cut":
        del stored[SEALED + 2 * segment :]
    else:
        second, end = SEALED + segment, SEALED + 2 * segment
        stored[SEALED:end] = stored[second:end] + stored[SEALED:second]
    (tmp_path / "stored").write_bytes(stored)
    with pytest.raises(Rejected, match="digest"):
        restored(tmp_path, policy, found.digest)
    import hashlib

    with pytest.raises(Rejected, match="changed"):
        restored(tmp_path, policy, f"sha256:{hashlib.sha256(stored).hexdigest()}")


def test_the_same_update_under_another_salt_is_other_bytes(tmp_path: Path) -> None:
    codec.write_file(tmp_path / "update", {"w": np.ones(5, np.float32)})
    digests = {
        keep(StoredFile(tmp_path / "update"), tmp_path / "out", UpdateHistory(), KEY, bytes([n]) * 32, CONTEXT).digest
        for n in range(3)
    }
    assert len(digests) == 3


def test_the_stored_file_is_a_safetensors_file_that_shows_nothing_but_its_size(tmp_path: Path) -> None:
    found = kept(tmp_path, update(), UpdateHistory())
    (tensor,) = codec.layout_of(StoredFile(tmp_path / "stored")).tensors
    assert (tensor.name, tensor.dtype) == ("sealed", "U8")
    assert found.num_bytes == tensor.num_bytes + 128


@pytest.mark.parametrize(("value", "dtype"), [(np.nan, "fp32"), (1e6, "fp16"), (np.inf, "int8")])
def test_numbers_that_the_dtype_cannot_hold_are_refused(value: float, dtype: Any, tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="not-finite"):
        kept(tmp_path, {"w": np.array([1, value], np.float32)}, UpdateHistory(dtype=dtype))
