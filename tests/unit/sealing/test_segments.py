from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import accumulate
from random import Random
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.sealing.segments import (
    LENGTH_BYTES,
    OVERHEAD,
    SEGMENT_BYTES,
    Seal,
    SealedReader,
    Unreadable,
    whole_segment,
)

KEY, OTHER_KEY = bytes(range(32)), bytes(range(1, 33))
OBJECT, OTHER_OBJECT = UUID(int=7), UUID(int=8)
SEAL = Seal(KEY, OBJECT)
TEXT = Random(0).randbytes(6 * SEGMENT_BYTES)

LENGTHS = st.one_of(
    st.integers(1, 40),
    st.integers(1, 2 * SEGMENT_BYTES),
    st.sampled_from([SEGMENT_BYTES - OVERHEAD, SEGMENT_BYTES - 1, SEGMENT_BYTES, SEGMENT_BYTES + 1, 2 * SEGMENT_BYTES]),
)
APPENDS = st.lists(LENGTHS, max_size=5).filter(lambda lengths: sum(lengths) <= len(TEXT))
"""How many bytes each of several appends has."""


def segments_of(appends: Sequence[int], seal: Seal = SEAL) -> list[bytes]:
    """Those of the beginning of TEXT, written in these appends."""
    segments = []
    for start, length in zip(accumulate(appends, initial=0), appends, strict=False):
        sealed = seal.seal(memoryview(TEXT)[start : start + length], start)
        while sealed:
            size = min(len(sealed), SEGMENT_BYTES + OVERHEAD)
            segments.append(sealed[:size])
            sealed = sealed[size:]
    return segments


def reader_of(sealed: bytes, seal: Seal = SEAL) -> SealedReader:
    return SealedReader(seal, lambda position, count: sealed[position : position + count], len(sealed))


def read(reader: SealedReader, start: int, end: int) -> bytes:
    """In both ways, which must agree."""
    target = bytearray(b"?" * (end - start))
    try:
        reader.read_into(memoryview(target), start)
    except Unreadable:
        with pytest.raises(Unreadable):
            b"".join(reader.pieces(start, end))
        raise
    assert b"".join(reader.pieces(start, end)) == target
    return bytes(target)


def walked(sealed: bytes) -> tuple[int, int]:
    """Where the whole segments end: (plain bytes, sealed bytes)."""
    plain, position = 0, 0
    while length := whole_segment(sealed[position : position + LENGTH_BYTES], len(sealed) - position):
        plain, position = plain + length, position + length + OVERHEAD
    return plain, position


@given(APPENDS)
def test_what_was_sealed_in_any_appends_is_read_back(appends: list[int]) -> None:
    segments, num_bytes = segments_of(appends), sum(appends)
    sealed = b"".join(segments)
    assert len(sealed) == num_bytes + OVERHEAD * len(segments)
    assert reader_of(sealed).num_bytes == num_bytes
    assert read(reader_of(sealed), 0, num_bytes) == TEXT[:num_bytes]
    assert walked(sealed) == (num_bytes, len(sealed))


@given(APPENDS, st.data())
def test_any_range_is_what_the_plaintext_has_there(appends: list[int], data: st.DataObject) -> None:
    reader = reader_of(b"".join(segments_of(appends)))
    for _ in range(4):  # one after the other: a reader remembers
        start = data.draw(st.integers(0, sum(appends)))
        end = data.draw(st.integers(start, min(start + 2 * SEGMENT_BYTES, sum(appends))))
        assert read(reader, start, end) == TEXT[start:end]


@given(APPENDS.filter(len), st.data())
def test_a_flipped_bit_is_never_read_as_other_bytes(appends: list[int], data: st.DataObject) -> None:
    segments = segments_of(appends)
    number = data.draw(st.integers(0, len(segments) - 1))
    bit = data.draw(
        st.one_of(st.integers(0, 8 * len(segments[number]) - 1), st.integers(0, 8 * OVERHEAD - 1))
    )  # often in length and nonce
    changed = bytearray(segments[number])
    changed[bit // 8] ^= 1 << bit % 8
    sealed = b"".join([*segments[:number], changed, *segments[number + 1 :]])
    with pytest.raises(Unreadable):
        read(reader_of(sealed), 0, sum(appends))
    assert_right_or_unreadable(sealed, sum(appends))


def assert_right_or_unreadable(sealed: bytes, num_bytes: int) -> None:
    reader = reader_of(sealed)
    step = num_bytes // 5 + 1
    for start in range(0, num_bytes, step):
        end = min(start + step, num_bytes)
        try:
            assert read(reader, start, end) == TEXT[start:end]
        except Unreadable:
            continue


@given(APPENDS.filter(lambda appends: len(appends) > 1), st.data())
def test_segments_in_another_order_are_unreadable(appends: list[int], data: st.DataObject) -> None:
    segments = segments_of(appends)
    one, other = sorted(data.draw(st.sets(st.integers(0, len(segments) - 1), min_size=2, max_size=2)))
    segments[one], segments[other] = segments[other], segments[one]
    with pytest.raises(Unreadable):
        read(reader_of(b"".join(segments)), 0, sum(appends))
    assert_right_or_unreadable(b"".join(segments), sum(appends))


@given(APPENDS.filter(len), st.data())
def test_a_segment_left_out_or_twice_is_unreadable(appends: list[int], data: st.DataObject) -> None:
    segments = segments_of(appends)
    number = data.draw(st.integers(0, len(segments) - 1))
    without = [*segments[:number], *segments[number + 1 :]]
    twice = [*segments[: number + 1], *segments[number:]]
    with pytest.raises(Unreadable):
        read(reader_of(b"".join(without)), 0, sum(appends))
    with pytest.raises(Unreadable):
        read(reader_of(b"".join(twice)), 0, sum(appends) + len(segments[number]) - OVERHEAD)


@given(APPENDS.filter(len), st.data())
def test_a_segment_of_another_object_or_key_is_unreadable(appends: list[int], data: st.DataObject) -> None:
    segments = segments_of(appends)
    number = data.draw(st.integers(0, len(segments) - 1))
    for seal in (Seal(KEY, OTHER_OBJECT), Seal(OTHER_KEY, OBJECT)):
        mixed = [*segments[:number], segments_of(appends, seal)[number], *segments[number + 1 :]]
        with pytest.raises(Unreadable):
            read(reader_of(b"".join(mixed)), 0, sum(appends))
        with pytest.raises(Unreadable):
            read(reader_of(b"".join(segments), seal), 0, sum(appends))


@given(APPENDS.filter(len), st.data())
def test_what_was_cut_off_anywhere_goes_on_after_its_last_whole_segment(
    appends: list[int], data: st.DataObject
) -> None:
    segments, num_bytes = segments_of(appends), sum(appends)
    whole = data.draw(st.integers(0, len(segments) - 1))
    torn = data.draw(st.integers(0, len(segments[whole]) - 1))
    sealed = b"".join(segments[:whole]) + segments[whole][:torn]
    kept = sum(map(len, segments[:whole])) - OVERHEAD * whole
    assert reader_of(sealed).num_bytes == kept
    assert read(reader_of(sealed), 0, kept) == TEXT[:kept]
    with pytest.raises(Unreadable, match=f"ends after {kept} bytes"):
        read(reader_of(sealed), 0, num_bytes)
    plain, position = walked(sealed)
    assert (plain, position) == (kept, len(sealed) - torn)
    resumed = sealed[:position] + SEAL.seal(memoryview(TEXT)[plain:num_bytes], plain)
    assert read(reader_of(resumed), 0, num_bytes) == TEXT[:num_bytes]


def test_zeros_after_the_last_segment_are_no_segment() -> None:
    """A power failure may leave them where a file had grown already."""
    sealed = SEAL.seal(TEXT[:100], 0) + bytes(1000)
    assert reader_of(sealed).num_bytes == 100
    assert read(reader_of(sealed), 0, 100) == TEXT[:100]


def test_the_same_bytes_sealed_again_have_another_nonce() -> None:
    sealed = [segment for _ in range(50) for segment in segments_of([40, SEGMENT_BYTES + 1])]
    assert len({segment[4:16] for segment in sealed}) == len(sealed) == 150


def test_a_segment_is_not_opened_at_another_offset_or_cut() -> None:
    segment = SEAL.seal(TEXT[:100], 500)
    assert SEAL.open_segment(segment, 500) == TEXT[:100]
    for sealed, offset in ((segment, 0), (segment, 501), (segment[:-1], 500), (segment + b"\0", 500), (b"", 500)):
        with pytest.raises(Unreadable, match=f"at byte {offset} of the object"):
            SEAL.open_segment(sealed, offset)


def test_a_segment_of_the_first_version_can_still_be_opened() -> None:
    length_and_nonce = "0e000000b5f3d21cf2ad97f9da719d25"
    text_and_tag = "ac5b797a40c13062be60480e910ed22226838e5bd523fcc5a5f5ba1e526d"
    assert SEAL.open_segment(bytes.fromhex(length_and_nonce + text_and_tag), 2**40) == b"Lethe forgets."


def test_the_size_of_an_object_of_full_segments_is_known_after_one_read() -> None:
    sealed = SEAL.seal(TEXT, 0) + SEAL.seal(b"tail", len(TEXT))
    reads: list[int] = []

    def read_at(position: int, count: int) -> bytes:
        reads.append(position)
        return sealed[position : position + count]

    reader = SealedReader(SEAL, read_at, len(sealed))
    assert reader.num_bytes == len(TEXT) + 4
    assert len(reads) == 1


def test_short_segments_that_fill_the_place_of_a_full_one_are_counted_right() -> None:
    appends = [100, SEGMENT_BYTES - 100 - OVERHEAD, SEGMENT_BYTES, 5]
    sealed = b"".join(segments_of(appends))
    assert len(sealed) == 2 * (SEGMENT_BYTES + OVERHEAD) + 5 + OVERHEAD
    assert reader_of(sealed).num_bytes == sum(appends)
    assert read(reader_of(sealed), 0, sum(appends)) == TEXT[: sum(appends)]


def test_neighbouring_small_reads_open_a_segment_once() -> None:
    sealed = SEAL.seal(TEXT, 0)
    reads: list[int] = []

    def read_at(position: int, count: int) -> bytes:
        reads.append(position)
        return sealed[position : position + count]

    reader = SealedReader(SEAL, read_at, len(sealed))
    found = bytearray(2 * SEGMENT_BYTES)
    for start in range(0, len(found), 4096):
        reader.read_into(memoryview(found)[start : start + 4096], start)
    assert found == TEXT[: len(found)]
    assert len(reads) == 1 + 2  # the last for the size, then each of the two


def test_nothing_of_an_unreadable_segment_stays_in_the_buffer() -> None:
    sealed = bytearray(SEAL.seal(TEXT[:1000], 0))
    sealed[-1] ^= 1
    target = bytearray(b"?" * 1000)
    with pytest.raises(Unreadable):
        SEAL.open_segment_into(sealed, 0, memoryview(target))
    assert target == bytes(1000)


def test_a_buffer_of_numbers_is_filled_as_bytes() -> None:
    numbers = np.arange(100_000, dtype=np.float32)
    reader = reader_of(SEAL.seal(numbers.data, 0))
    found = np.empty(50_000, np.float32)
    reader.read_into(found.data, 4 * 25_000)
    assert np.array_equal(found, numbers[25_000:75_000])


def test_an_empty_object_has_no_segments() -> None:
    assert SEAL.seal(b"", 0) == b""
    assert reader_of(b"").num_bytes == 0
    assert read(reader_of(b""), 0, 0) == b""


def test_no_range_is_read_backwards() -> None:
    reader = reader_of(SEAL.seal(TEXT[:100], 0))
    for start, end in ((-1, 5), (5, 4)):
        with pytest.raises(ValueError, match="no range"):
            list(reader.pieces(start, end))


def test_a_key_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        Seal(b"short", OBJECT)


def test_threads_share_a_seal() -> None:
    wrong: list[int] = []

    def work(offset: int) -> None:
        for _ in range(20):
            segment = SEAL.seal(memoryview(TEXT)[offset : offset + 50_000], offset)
            if SEAL.open_segment(segment, offset) != TEXT[offset : offset + 50_000]:
                wrong.append(offset)

    threads = [threading.Thread(target=work, args=(offset,)) for offset in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
