"""Readers and writers of plain files, and the writer that hashes and inspects."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save

from services.core import digests
from services.core.errors import Rejected
from services.tensors import codec, slices
from services.tensors.aggregate import weighted_step
from services.tensors.errors import KernelFailed
from services.tensors.inspection import InspectingWriter, Inspector
from services.tensors.streams import FileWriter, StoredFile

SAMPLE = save({"w": np.arange(12, dtype=np.float32), "half": np.ones(3, np.float16), "count": np.array(7, np.int64)})


class Written:
    """A writer into memory, which remembers how often it was begun again."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.num_restarts = 0

    def write(self, data: bytes | memoryview) -> None:
        self.data += data

    def restart(self) -> None:
        self.data.clear()
        self.num_restarts += 1


class InMemory:
    """Something stored that is no file, which counts how often it is open."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.num_opened = self.num_open = 0

    def open(self) -> InMemory:
        self.num_opened += 1
        self.num_open += 1
        return self

    @property
    def num_bytes(self) -> int:
        return len(self.data)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        assert self.num_open
        buffer[:] = self.data[offset : offset + len(buffer)]

    def close(self) -> None:
        self.num_open -= 1


def reading(path: Path, num_bytes: int, offset: int) -> bytes:
    buffer = bytearray(num_bytes)
    with closing(StoredFile(path).open()) as file:
        file.read_into(memoryview(buffer), offset)
    return bytes(buffer)


def test_any_range_of_a_file_can_be_read_in_any_order(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(range(100)))
    with closing(StoredFile(tmp_path / "file").open()) as file:
        assert file.num_bytes == 100
        for start, stop in ((90, 100), (0, 10), (40, 40), (100, 100), (0, 100)):
            buffer = bytearray(stop - start)
            file.read_into(memoryview(buffer), start)
            assert buffer == bytes(range(start, stop))


@pytest.mark.parametrize(("num_bytes", "offset"), [(1, 10), (11, 0), (5, 6), (1, 1000)])
def test_reading_past_the_end_is_refused(tmp_path: Path, num_bytes: int, offset: int) -> None:
    (tmp_path / "file").write_bytes(bytes(10))
    with pytest.raises(Rejected, match="ends at byte") as refused:
        reading(tmp_path / "file", num_bytes, offset)
    assert refused.value.code == "not-safetensors"


def test_short_reads_are_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(bytes(range(100)))
    whole = os.preadv

    def short(fd: int, buffers: list[memoryview], offset: int) -> int:
        return whole(fd, [buffers[0][:7]], offset)

    monkeypatch.setattr(os, "preadv", short)
    assert reading(tmp_path / "file", 60, 20) == bytes(range(20, 80))
    with pytest.raises(Rejected, match="ends at byte 100"):
        reading(tmp_path / "file", 60, 50)


@pytest.mark.parametrize("length", [0, 7, 8, 40, len(SAMPLE) - 1])
def test_a_file_that_is_cut_off_is_refused(tmp_path: Path, length: int) -> None:
    (tmp_path / "file").write_bytes(SAMPLE[:length])
    with pytest.raises(Rejected, match="Send a complete file"):
        codec.layout_of(StoredFile(tmp_path / "file"))


def test_a_file_that_shrinks_while_it_is_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(SAMPLE)
    tensors = codec.iterate(StoredFile(tmp_path / "file"))
    next(tensors)
    os.truncate(tmp_path / "file", len(SAMPLE) - 60)
    with pytest.raises(Rejected, match="before its tensors do"):
        list(tensors)


def test_a_writer_creates_nothing_until_something_is_written(tmp_path: Path) -> None:
    with FileWriter(tmp_path / "file") as out:
        assert not (tmp_path / "file").exists()
        out.restart()
    assert not (tmp_path / "file").exists()


def test_a_file_that_was_begun_again_has_only_what_came_afterwards(tmp_path: Path) -> None:
    with FileWriter(tmp_path / "file") as out:
        out.write(b"long and wrong")
        out.restart()
        assert not (tmp_path / "file").exists()
        out.write(b"ri")
        out.write(memoryview(b"ght"))
    assert (tmp_path / "file").read_bytes() == b"right"


def test_no_file_stays_open(tmp_path: Path) -> None:
    num_open = len(list(Path("/proc/self/fd").iterdir()))
    with FileWriter(tmp_path / "file") as out:
        out.write(SAMPLE)
        out.restart()
        out.write(SAMPLE)
    codec.layout_of(StoredFile(tmp_path / "file"))
    codec.read(StoredFile(tmp_path / "file"))
    (tmp_path / "file").write_bytes(b"PK\x03\x04 and so on")
    with pytest.raises(Rejected, match="zip"):
        codec.read(StoredFile(tmp_path / "file"))
    assert len(list(Path("/proc/self/fd").iterdir())) == num_open


@given(st.lists(st.integers(0, len(SAMPLE)), max_size=8), st.booleans())
def test_an_inspecting_writer_says_what_it_passed_on(cuts: list[int], again: bool) -> None:
    written = Written()
    writer = InspectingWriter(written)
    if again:
        writer.write(SAMPLE[:100])
        writer.restart()
    ends = [*sorted(cuts), len(SAMPLE)]
    for start, end in zip([0, *ends], ends, strict=False):
        writer.write(SAMPLE[start:end])
    digest, inspection, num_bytes = writer.finish()
    assert bytes(written.data) == SAMPLE
    assert (digest, num_bytes, writer.num_bytes) == (digests.of_bytes(SAMPLE), len(SAMPLE), len(SAMPLE))
    assert inspection.finite and [info.name for info in inspection.layout.tensors] == ["count", "half", "w"]


@pytest.mark.parametrize("number", [1.0, np.inf, np.nan, 1e30])
def test_a_new_model_is_known_without_reading_it_back(tmp_path: Path, number: float) -> None:
    tensors: dict[str, Any] = {"w": np.array([[number, 2.0]], np.float32), "n": np.arange(3), "e": np.empty((0, 2))}
    with FileWriter(tmp_path / "file") as out:
        writer = InspectingWriter(out)
        codec.write(writer, tensors)
    data = (tmp_path / "file").read_bytes()
    inspector = Inspector(len(data))
    inspector.feed(data)
    assert writer.finish() == (digests.of_bytes(data), inspector.finish(), len(data))


@pytest.mark.parametrize("written", [b"", SAMPLE[:5], SAMPLE[:40], SAMPLE[:-1]], ids=["nothing", "5", "40", "one less"])
def test_an_inspecting_writer_refuses_what_is_not_a_whole_file(written: bytes) -> None:
    writer = InspectingWriter(Written())
    writer.write(written)
    with pytest.raises(Rejected, match=r"ends after|the file has only") as refused:
        writer.finish()
    assert refused.value.code == "not-safetensors"


@pytest.mark.parametrize("chunks", [[SAMPLE + b"x"], [SAMPLE, b"x"], [save({}) + b"x"]])
def test_an_inspecting_writer_refuses_more_than_the_header_says(chunks: list[bytes]) -> None:
    writer = InspectingWriter(Written())
    with pytest.raises(Rejected, match="More than the announced"):
        for chunk in chunks:
            writer.write(chunk)


def test_a_step_that_overflows_at_its_end_is_begun_again_and_inspected_as_it_is(tmp_path: Path) -> None:
    """The first tensor of the first attempt is written before the second overflows."""
    honest, hostile = np.ones(2, np.float32), np.full(2, 3e38, np.float32)
    codec.write_file(tmp_path / "base", {"a": honest, "b": hostile})
    codec.write_file(tmp_path / "good", {"a": honest, "b": -honest})
    codec.write_file(tmp_path / "bad", {"a": 5 * honest, "b": hostile})
    inputs = {name: StoredFile(tmp_path / name) for name in ("base", "good", "bad")}
    updates = [{"digest": "good", "weight": 1.0}, {"digest": "bad", "weight": 1.0}]
    params = {"base": "base", "updates": updates, "scale": 1.0, "bounds": {"max_norm": None, "large_updates": "refuse"}}
    written = Written()
    writer = InspectingWriter(written)
    assert weighted_step(params, inputs, writer)["left_out:1"] == 1.0
    assert written.num_restarts == 1
    with FileWriter(tmp_path / "alone") as out:
        weighted_step({**params, "updates": updates[:1]}, inputs, out)
    assert bytes(written.data) == (tmp_path / "alone").read_bytes()
    assert writer.finish()[0] == digests.of_bytes(bytes(written.data))
    with pytest.raises(KernelFailed, match="'b'"):
        weighted_step({**params, "bounds": None}, inputs, Written())


@pytest.mark.parametrize(("max_open_files", "num_opened"), [(256, 1), (0, 4)], ids=["kept open", "opened each time"])
def test_a_kernel_reads_what_is_no_file_and_closes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_open_files: int, num_opened: int
) -> None:
    monkeypatch.setattr(slices, "MAX_OPEN_FILES", max_open_files)
    base, update = (save({"w": np.array(numbers, np.float32)}) for numbers in ([1, 2, 3], [4, 5, 6]))
    inputs = {"base": InMemory(base), "update": InMemory(update)}
    params = {"base": "base", "updates": [{"digest": "update", "weight": 1.0}], "scale": 1.0}
    with FileWriter(tmp_path / "out") as out:
        weighted_step(params, inputs, out, slice_elements=1)
    assert codec.read(StoredFile(tmp_path / "out"))["w"].tolist() == [5, 7, 9]
    assert inputs["update"].num_opened == num_opened
    assert [stored.num_open for stored in inputs.values()] == [0, 0]
