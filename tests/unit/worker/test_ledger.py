"""The ledger of samples that are left out for good."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from services.wire.v1.exclusions import ExcludedSamples
from worker.ledger import Ledger, LedgerUnusable

FIRST = ExcludedSamples(erasure_id=UUID(int=1), samples=[17, 3])
SECOND = ExcludedSamples(erasure_id=UUID(int=2), samples=[4])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "client.jsonl"


def test_nothing_is_left_out_and_nothing_written_at_first(path: Path) -> None:
    assert Ledger(path).samples == frozenset()
    assert not path.exists()


def test_what_was_added_is_there_after_a_restart(path: Path) -> None:
    Ledger(path).add([FIRST])
    Ledger(path).add([FIRST, SECOND])
    assert Ledger(path).samples == {3, 4, 17}
    assert len(path.read_bytes().splitlines()) == 2


def test_samples_of_a_request_that_is_stated_otherwise_are_left_out_as_well(path: Path) -> None:
    Ledger(path).add([FIRST])
    Ledger(path).add([ExcludedSamples(erasure_id=FIRST.erasure_id, samples=[8])])
    assert Ledger(path).samples == {3, 8, 17}


@pytest.mark.parametrize("cut", [1, 10, 60])
def test_last_line_that_was_cut_off_is_dropped_and_can_be_added_again(path: Path, cut: int) -> None:
    Ledger(path).add([FIRST])
    Ledger(path).add([SECOND])
    path.write_bytes(path.read_bytes()[:-cut])
    torn = Ledger(path)
    assert torn.samples == {3, 17}
    torn.add([FIRST, SECOND])
    assert Ledger(path).samples == {3, 4, 17}
    assert len(path.read_bytes().splitlines()) == 2


def test_damage_in_the_middle_is_not_passed_over(path: Path) -> None:
    Ledger(path).add([FIRST, SECOND])
    path.write_bytes(path.read_bytes().replace(b"[", b"(", 1))
    with pytest.raises(LedgerUnusable, match=r"line 1 of .* is damaged"):
        Ledger(path)


def test_ledger_that_cannot_be_written_leaves_nothing_out(path: Path) -> None:
    path.parent.write_text("in the way")
    with pytest.raises(LedgerUnusable):
        Ledger(path)
    path.parent.unlink()
    ledger = Ledger(path)
    path.parent.write_text("in the way")
    with pytest.raises(LedgerUnusable, match="cannot write the ledger"):
        ledger.add([FIRST])
    assert ledger.samples == frozenset()


def test_every_entry_is_flushed_to_the_disk_with_its_name(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    flushed: list[str] = []
    fsync = os.fsync

    def note(fd: int) -> None:
        flushed.append(str(Path(f"/proc/self/fd/{fd}").readlink()))
        fsync(fd)

    monkeypatch.setattr("worker.ledger.os.fsync", note)
    Ledger(path).add([FIRST])
    assert flushed == [str(path), str(path.parent)]
