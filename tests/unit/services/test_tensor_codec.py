from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from services.core.errors import Rejected
from services.tensors import codec
from services.tensors.streams import StoredFile


def test_what_is_written_is_read_by_the_safetensors_library(tmp_path: Path) -> None:
    tensors: dict[str, codec.Array] = {
        "b": np.arange(6, dtype=np.float32).reshape(2, 3).T,
        "a": np.array(5, np.int64),
        "é": np.zeros((0, 2), np.float16),
    }
    codec.write_file(tmp_path / "file", tensors)
    loaded = load_file(tmp_path / "file")
    assert loaded.keys() == tensors.keys()
    assert all(np.array_equal(loaded[name], tensors[name]) for name in tensors)


def test_what_the_safetensors_library_writes_is_read(tmp_path: Path) -> None:
    tensors = {"x": np.arange(5, dtype=np.uint8), "flag": np.array([True, False]), "w": np.ones((2, 2))}
    save_file(tensors, tmp_path / "file", metadata={"by": "test"})
    loaded = codec.read(StoredFile(tmp_path / "file"))
    assert list(loaded) == ["flag", "w", "x"]
    assert all(loaded[name].dtype == tensors[name].dtype for name in tensors)
    assert all(np.array_equal(loaded[name], tensors[name]) for name in tensors)


def test_equal_tensors_give_equal_bytes_whatever_their_order(tmp_path: Path) -> None:
    a, b = np.ones(3, np.float32), np.zeros((2, 2), ">f8")
    codec.write_file(tmp_path / "one", {"a": a, "b": b})
    codec.write_file(tmp_path / "two", {"b": b.astype("<f8"), "a": a})
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_bfloat16_survives_a_round_trip(tmp_path: Path) -> None:
    array = np.array([[0x3F80, 0xBF80]], np.uint16).view(codec.BF16)
    codec.write_file(tmp_path / "file", {"a": array})
    loaded = codec.read(StoredFile(tmp_path / "file"))["a"]
    assert loaded.dtype == codec.BF16
    assert loaded.shape == (1, 2)
    assert np.array_equal(loaded["bits"], array["bits"])


def test_dtype_without_a_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="complex64"):
        codec.write_file(tmp_path / "file", {"a": np.zeros(1, np.complex64)})


def test_reading_a_foreign_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"PK\x03\x04 and so on")
    with pytest.raises(Rejected, match="zip"):
        codec.read(StoredFile(tmp_path / "file"))
