import json
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save

from services.core.errors import Rejected
from services.tensors.inspection import Inspection, Inspector
from services.tensors.layout import UPLOADED, Bounds, Layout, TensorInfo


def inspect(data: bytes, chunk_bytes: int = 1 << 20, announced: int | None = None) -> Inspection:
    inspector = Inspector(len(data) if announced is None else announced)
    for first in range(0, len(data), chunk_bytes):
        inspector.feed(data[first : first + chunk_bytes])
    return inspector.finish()


def verdict(data: bytes, chunk_bytes: int) -> str:
    try:
        inspect(data, chunk_bytes)
    except Rejected as rejected:
        return rejected.code
    return "inspected"


def file_of(header: dict[str, Any] | bytes, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype: str = "F32", shape: Any = (1,), offsets: Any = (0, 4)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


SAMPLE = save(
    {
        "w": np.arange(12, dtype=np.float32).reshape(3, 4),
        "half": np.ones(3, np.float16),
        "count": np.array(7, np.int64),
        "empty": np.empty((0, 5), np.float64),
    },
    metadata={"format": "pt"},
)


def test_layout_is_sorted_by_name_and_ignores_the_order_in_the_file() -> None:
    assert inspect(SAMPLE).layout == Layout(
        (
            TensorInfo("count", "I64", ()),
            TensorInfo("empty", "F64", (0, 5)),
            TensorInfo("half", "F16", (3,)),
            TensorInfo("w", "F32", (3, 4)),
        )
    )


def test_updatable_layout_has_floating_tensors_only() -> None:
    assert [info.name for info in inspect(SAMPLE).layout.updatable().tensors] == ["empty", "half", "w"]


def test_equal_layouts_have_equal_digests_whatever_the_values() -> None:
    one = inspect(save({"a": np.zeros((2, 3), np.float32)})).layout
    same = inspect(save({"a": np.ones((2, 3), np.float32)})).layout
    other = inspect(save({"a": np.ones((3, 2), np.float32)})).layout
    assert one.digest() == same.digest() != other.digest()
    assert one.digest().startswith("sha256:")


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\x00" * 7, id="less than a length"),
        pytest.param(b"\x00" * 8, id="empty header"),
        pytest.param(b"\xff" * 64, id="absurd header length"),
        pytest.param(file_of(b"[]"), id="header is a list"),
        pytest.param(file_of(b"{"), id="broken json"),
        pytest.param(file_of(b'{"a":' * 100_000), id="deeply nested json"),
        pytest.param(file_of(b'{"a":' + b"9" * 5000 + b"}"), id="absurd number"),
        pytest.param(file_of(b'{"\xff":1}'), id="not utf-8"),
        pytest.param(file_of({"a": 1}, b"\0" * 4), id="entry is no object"),
        pytest.param(file_of({"a": {"dtype": "F32"}}, b"\0" * 4), id="entry lacks keys"),
        pytest.param(file_of({"a": entry("F31")}, b"\0" * 4), id="unknown dtype"),
        pytest.param(file_of({"a": entry("C64", offsets=(0, 8))}, b"\0" * 8), id="complex numbers"),
        pytest.param(file_of({"a": entry(shape=(-1,))}, b"\0" * 4), id="negative shape"),
        pytest.param(file_of({"a": entry(shape=(True,))}, b"\0" * 4), id="boolean in shape"),
        pytest.param(file_of({"a": entry(shape=(2**62, 2**62))}, b"\0" * 4), id="absurd shape"),
        pytest.param(file_of({"a": entry(shape=(1,) * 40)}, b"\0" * 4), id="absurd rank"),
        pytest.param(file_of({"a": entry(shape=(2,))}, b"\0" * 4), id="shape does not fit the bytes"),
        pytest.param(file_of({"a": entry(offsets=(4, 0))}, b"\0" * 4), id="offsets backwards"),
        pytest.param(file_of({"a": entry(offsets=(4, 8))}, b"\0" * 8), id="hole at the start"),
        pytest.param(file_of({"a": entry(), "b": entry(offsets=(8, 12))}, b"\0" * 12), id="hole"),
        pytest.param(file_of({"a": entry(), "b": entry(offsets=(2, 6))}, b"\0" * 6), id="overlap"),
        pytest.param(file_of({"a": entry()}, b"\0" * 5), id="bytes after the data"),
        pytest.param(file_of({"a": entry()}, b"\0" * 3), id="data too short"),
        pytest.param(file_of({"": entry()}, b"\0" * 4), id="empty name"),
        pytest.param(file_of({"a\0b": entry()}, b"\0" * 4), id="control character in a name"),
        pytest.param(file_of({"\ud800": entry()}, b"\0" * 4), id="lone surrogate in a name"),
        pytest.param(file_of({"__metadata__": {"a": 1}}), id="metadata is not text"),
        pytest.param(
            file_of(
                b'{"a":' + json.dumps(entry()).encode() + b',"a":' + json.dumps(entry()).encode() + b"}", b"\0" * 4
            ),
            id="duplicate name",
        ),
    ],
)
def test_malformed_file_is_rejected(data: bytes) -> None:
    with pytest.raises(Rejected) as caught:
        inspect(data)
    assert caught.value.code == "not-safetensors"
    assert "save_file" in caught.value.detail


@pytest.mark.parametrize(
    ("data", "hint"), [(b"\x80\x04\x95" + b"0" * 60, "pickle"), (b"PK\x03\x04" + b"0" * 60, "zip")]
)
def test_foreign_format_is_named(data: bytes, hint: str) -> None:
    with pytest.raises(Rejected, match=hint):
        inspect(data)


def test_header_larger_than_the_bound_is_rejected_before_it_is_read() -> None:
    inspector = Inspector(10_000, Bounds(header_bytes=100, tensors=10))
    with pytest.raises(Rejected, match="at most 100"):
        inspector.feed((101).to_bytes(8, "little"))


def empty_tensors(count: int) -> bytes:
    return json.dumps({str(number): entry(shape=[0], offsets=[0, 0]) for number in range(count)}).encode()


FLOODS = {
    "empty tensors": empty_tensors(UPLOADED.tensors + 1),
    "empty objects": b"{" + b",".join(b'"%d":{}' % n for n in range(100_000)) + b"}",
    "metadata": b'{"__metadata__":{' + b",".join(b'"%d":"x"' % n for n in range(100_000)) + b"}}",
    "dimensions": b'{"x":{"dtype":"F32","shape":[' + b"0," * 300_000 + b'0],"data_offsets":[0,0]}}',
    "depth": b'{"x":' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}",
    "digits": b'{"x":{"dtype":"F32","shape":[' + b"9" * 1_000_000 + b'],"data_offsets":[0,0]}}',
}


@pytest.mark.parametrize("kind", FLOODS)
def test_a_header_that_lists_too_much_is_rejected_before_much_is_made_of_it(kind: str) -> None:
    header = FLOODS[kind]
    tracemalloc.start()
    try:
        with pytest.raises(Rejected) as caught:
            inspect(file_of(header))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.code == "not-safetensors"
    assert peak_bytes < 40 * 2**20


def test_as_many_tensors_as_allowed_are_taken() -> None:
    assert len(inspect(file_of(empty_tensors(UPLOADED.tensors))).layout.tensors) == UPLOADED.tensors


@pytest.mark.parametrize("length", range(0, len(SAMPLE), 7))
def test_truncated_file_is_rejected(length: int) -> None:
    with pytest.raises(Rejected):
        inspect(SAMPLE[:length], announced=len(SAMPLE))
    with pytest.raises(Rejected):
        inspect(SAMPLE[:length])


def test_more_bytes_than_announced_are_rejected() -> None:
    with pytest.raises(Rejected, match="More than the announced"):
        inspect(SAMPLE + b"x", announced=len(SAMPLE))


@given(st.binary(max_size=200))
def test_random_bytes_are_rejected_and_nothing_else_happens(data: bytes) -> None:
    with pytest.raises(Rejected):
        inspect(data)


@given(st.integers(0, len(SAMPLE) - 1), st.integers(0, 255), st.integers(1, 64))
def test_mutated_file_is_either_inspected_or_rejected(position: int, value: int, chunk_bytes: int) -> None:
    data = bytearray(SAMPLE)
    data[position] = value
    assert verdict(bytes(data), chunk_bytes) in ("inspected", "not-safetensors")


@given(st.text(alphabet='{}[]":,abF32dtypeshp_offset0123456789-. ', max_size=120))
def test_random_header_is_either_inspected_or_rejected(text: str) -> None:
    assert verdict(file_of(b"{" + text.encode()), 64) in ("inspected", "not-safetensors")


@st.composite
def tensors(draw: st.DrawFn) -> dict[str, np.ndarray[Any, Any]]:
    names = draw(st.lists(st.text("abc.", min_size=1, max_size=4), min_size=1, max_size=5, unique=True))
    found = {}
    for name in names:
        dtype = draw(st.sampled_from([np.float32, np.float16, np.float64, np.int64, np.uint8]))
        values = np.array(draw(st.lists(st.integers(0, 100), max_size=9))).astype(dtype)
        if values.dtype.kind == "f" and len(values) and draw(st.booleans()):
            values[draw(st.integers(0, len(values) - 1))] = draw(st.sampled_from([np.nan, np.inf, -np.inf]))
        found[name] = values
    return found


@given(tensors(), st.integers(1, 50))
def test_inspection_does_not_depend_on_where_the_bytes_are_cut(
    arrays: dict[str, np.ndarray[Any, Any]], chunk_bytes: int
) -> None:
    data = save(arrays)
    expected = all(bool(np.isfinite(array).all()) for array in arrays.values())
    found = inspect(data, chunk_bytes)
    assert found == inspect(data)
    assert found.finite == expected
    assert found.num_bytes == len(data)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numbers_whose_squares_could_overflow_are_as_bad_as_infinite_ones(dtype: type[np.floating[Any]]) -> None:
    numbers = np.full(1000, 1e12, dtype)
    assert inspect(save({"a": numbers, "b": -numbers}), 7).finite
    for number in (1.1e12, -1.1e12, 3.4e38):
        numbers[-1] = number
        assert not inspect(save({"a": numbers})).finite
        assert not inspect(save({"a": numbers}), 7).finite


@pytest.mark.parametrize(("bits", "finite"), [(0x5368, True), (0xD368, True), (0x536A, False), (0x7F80, False)])
def test_bfloat16_is_judged_by_its_bits(bits: int, finite: bool) -> None:
    data = np.array([0x3F80, bits], "<u2").tobytes()
    assert inspect(file_of({"a": entry("BF16", (2,))}, data), 3).finite is finite


def test_inspector_takes_any_bytes_like_chunk() -> None:
    inspector = Inspector(len(SAMPLE))
    inspector.feed(memoryview(SAMPLE)[:20])
    inspector.feed(bytearray(SAMPLE[20:]))
    assert inspector.finish().finite
