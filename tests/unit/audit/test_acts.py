"""The log of acts as evidence: whatever is changed, removed, added or moved in an export is found."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.audit.acts import (
    ActsInvalid,
    Found,
    beginning,
    check,
    commitment,
    digest_of,
    is_export,
    read_export,
    sign_head,
    to_line,
)
from services.audit.keys import key_id, public_pem
from services.wire.v1.acts import ActEntry, ActGap, ActPart, ActsHead, ActWords, RecordedAct
from tests.golden.certificate_v1 import CERTIFICATE, KEY
from tests.support.signatures import key_of_seed

FEDERATION = UUID("01890a5d-ac96-774b-bcce-b302099a8059")
AT = datetime(2026, 3, 1, 9, 0, tzinfo=UTC)
KEYS = {key_id(KEY.public_key()): KEY.public_key()}


def words(number: int) -> ActWords:
    return ActWords(salt=f"{number:064x}", content={"name": f"hospital-{number}"})


def act(seq: int, gap: ActGap | None = None) -> RecordedAct:
    entry = ActEntry(
        federation=FEDERATION,
        seq=seq,
        id=UUID(int=seq),
        at=AT + timedelta(seconds=seq),
        act="client.enrolled",
        role="operator",
        parts=[ActPart(says="whom", commitment=commitment(words(seq)))],
        gap=gap,
    )
    return RecordedAct(entry=entry, opened=[words(seq)])


def head(acts: list[RecordedAct], kept_from: int = 1, before: str | None = None) -> ActsHead:
    start = digest = before or beginning(FEDERATION)
    seq = kept_from - 1
    for one in acts:
        digest, seq = digest_of(one.entry, one.entry.gap.after if one.entry.gap else digest), one.entry.seq
    return ActsHead(federation=FEDERATION, at=AT, kept_from=kept_from, before=start, seq=seq, digest=digest)


def export(acts: list[RecordedAct], signed: ActsHead | None = None) -> bytes:
    return b"".join(map(to_line, acts)) + sign_head(signed or head(acts), KEY)


def found_in(data: bytes) -> Found:
    return read_export(io.BytesIO(data), KEYS)


ACTS = [act(seq) for seq in range(1, 8)]
EXPORT = export(ACTS)


def test_an_export_verifies_and_says_what_is_in_it() -> None:
    found = found_in(EXPORT)
    assert (found.num_entries, found.num_opened, found.num_closed, found.num_lost) == (7, 7, 0, 0)
    assert found.head.seq == 7
    assert all(one.ok for one in check(io.BytesIO(EXPORT), public_pem(KEY.public_key())))
    assert is_export(EXPORT) and not is_export(CERTIFICATE.read_bytes())


def test_an_empty_log_verifies() -> None:
    assert found_in(export([])).num_entries == 0 and is_export(export([]))


@given(place=st.integers(0, len(EXPORT) - 1), bit=st.integers(0, 7))
def test_any_changed_bit_is_found(place: int, bit: int) -> None:
    changed = EXPORT[:place] + bytes([EXPORT[place] ^ (1 << bit)]) + EXPORT[place + 1 :]
    with pytest.raises(ActsInvalid):
        found_in(changed)


def lines(edit: Callable[[list[bytes]], object]) -> bytes:
    left = EXPORT.splitlines(keepends=True)
    edit(left)
    return b"".join(left)


@pytest.mark.parametrize("number", range(8))
def test_a_removed_line_is_found_wherever_it_stood(number: int) -> None:
    with pytest.raises(ActsInvalid):
        found_in(lines(lambda left: left.pop(number)))


@pytest.mark.parametrize("number", range(7))
def test_a_line_that_was_added_or_moved_is_found(number: int) -> None:
    def swapped(left: list[bytes]) -> None:
        other = (number + 3) % 7
        left[number], left[other] = left[other], left[number]

    for edit in (lambda left: left.insert(number, left[(number + 1) % 7]), swapped):
        with pytest.raises(ActsInvalid):
            found_in(lines(edit))


def test_entries_that_were_removed_with_all_that_follow_are_found_by_the_head() -> None:
    with pytest.raises(ActsInvalid, match="signed head is of entry 7"):
        found_in(b"".join(map(to_line, ACTS[:4])) + EXPORT.splitlines(keepends=True)[-1])


def test_an_entry_that_was_changed_and_chained_again_is_found_by_the_signature() -> None:
    changed = [*ACTS[:3], act(4).model_copy(update={"entry": ACTS[3].entry.model_copy(update={"role": "admin"})})]
    changed += ACTS[4:]
    with pytest.raises(ActsInvalid, match="at least one of them was changed"):
        found_in(b"".join(map(to_line, changed)) + EXPORT.splitlines(keepends=True)[-1])
    other = key_of_seed(bytes(32))
    with pytest.raises(ActsInvalid, match="public key was not given"):
        found_in(b"".join(map(to_line, changed)) + sign_head(head(changed), other))


def test_a_name_that_was_changed_is_found_and_one_that_is_gone_is_counted() -> None:
    changed = [*ACTS[:-1], ACTS[-1].model_copy(update={"opened": [words(99)]})]
    with pytest.raises(ActsInvalid, match="commitment is to other words"):
        found_in(export(changed, head(ACTS)))
    erased = [*ACTS[:-1], ACTS[-1].model_copy(update={"opened": [None]})]
    assert found_in(export(erased, head(ACTS))).num_closed == 1
    fewer = [*ACTS[:-1], ACTS[-1].model_copy(update={"opened": []})]
    with pytest.raises(ActsInvalid, match="opens 0 of 1 parts"):
        found_in(export(fewer, head(ACTS)))


def test_what_was_pruned_is_said_by_the_head_and_nothing_else_may_be_missing() -> None:
    before = head(ACTS[:3]).digest
    kept = ACTS[3:]
    pruned = head(kept, 4, before)
    assert pruned.digest == head(ACTS).digest
    assert found_in(export(kept, pruned)).num_entries == 4
    with pytest.raises(ActsInvalid, match="removed, added or moved"):
        found_in(export(kept[1:], pruned))
    with pytest.raises(ActsInvalid, match="removed, added or moved"):
        found_in(export(kept, head(ACTS)))
    assert found_in(export([], head([], 8, head(ACTS).digest))).num_entries == 0


def test_a_gap_that_the_log_tells_of_is_counted_and_what_is_before_it_is_held_fast() -> None:
    lost = head(ACTS)
    gap = ActGap(first=4, last=7, before=head(ACTS[:3]).digest, after=lost.digest)
    told = [*ACTS[:3], act(8, gap), act(9)]
    assert found_in(export(told)).num_lost == 4
    with pytest.raises(ActsInvalid, match="tells of a gap elsewhere"):
        found_in(export([*ACTS[:2], act(8, gap), act(9)], head(told)))
    other = act(3).model_copy(update={"entry": ACTS[2].entry.model_copy(update={"role": "admin"})})
    with pytest.raises(ActsInvalid, match="tells of a gap elsewhere"):
        found_in(export([*ACTS[:2], other, *told[3:]], head(told)))


def test_an_entry_of_another_federation_is_found() -> None:
    elsewhere = act(1).model_copy(update={"entry": ACTS[0].entry.model_copy(update={"federation": UUID(int=1)})})
    with pytest.raises(ActsInvalid, match="another federation"):
        found_in(export([elsewhere]))


def test_what_is_no_export_is_refused_with_a_reason() -> None:
    for data in (b"", b"\n", b"{}\n", EXPORT[:-1], b'{"entry":1}\n' + EXPORT):
        with pytest.raises(ActsInvalid):
            found_in(data)


def test_entries_name_nobody() -> None:
    """Whoever has the entry alone cannot try names: the commitment is salted."""
    said = ACTS[0].entry.model_dump_json()
    assert "hospital" not in said
    guess = ActWords(salt="0" * 64, content=words(1).content)
    assert commitment(guess) != ACTS[0].entry.parts[0].commitment
    assert json.loads(said)["parts"] == [{"says": "whom", "commitment": commitment(words(1))}]
