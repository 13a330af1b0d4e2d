"""The log of tombstones: what it promises through crashes, repetition, company and tampering."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.runtime.evidence_comparison import check
from coordinator.runtime.signing import EvidenceLost
from coordinator.store.gate import Mark
from coordinator.tombstones.files import FileTombstoneLog
from coordinator.tombstones.port import (
    ErasedSamples,
    FencedCohort,
    LogCorrupt,
    Tombstone,
    TombstoneLog,
    erased_clients,
    newest_epochs,
)
from services.core import digests

NOW = datetime(2026, 3, 1, 9, 0, tzinfo=UTC)
OLD_LOG = "sha256:d777437054895e2e8b718c6994cce69d9397fac21556089c5911c0abfe59d09f"
"""Of two entries, as the release before `requested_by` wrote them."""
RUN, COHORT = UUID(int=10), UUID(int=20)


def tombstone(number: int, *, epoch: int = 2, **fields: Any) -> Tombstone:
    described: dict[str, Any] = {
        "request_id": UUID(int=number),
        "federation_id": UUID(int=1),
        "scope": "client",
        "client_ids": (UUID(int=1000 + number),),
        "cohorts": (FencedCohort(run_id=RUN, cohort_id=COHORT, epoch=epoch),),
        "at": NOW,
    }
    return Tombstone(**(described | fields))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "outside" / "the" / "database" / "tombstones.jsonl"


@pytest.fixture
def log(path: Path) -> TombstoneLog:
    return FileTombstoneLog(path)


def written(path: Path, num_entries: int) -> bytes:
    log = FileTombstoneLog(path)
    for number in range(num_entries):
        log.append(tombstone(number))
    return path.read_bytes()


def test_a_log_that_was_never_written_is_empty(log: TombstoneLog) -> None:
    assert log.entries() == ()


def test_entries_come_back_in_order_also_to_another_process(log: TombstoneLog, path: Path) -> None:
    erased = ErasedSamples(client_id=UUID(int=1000), samples=(3, 17))
    entries = (tombstone(0, scope="samples", samples=(erased,)), tombstone(1), tombstone(2))
    assert [log.append(entry) for entry in entries] == [0, 1, 2]
    assert log.entries() == entries
    assert FileTombstoneLog(path).entries() == entries


def test_the_log_is_for_its_owner_alone(log: TombstoneLog, path: Path) -> None:
    log.append(tombstone(1))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_entry_is_not_repeated(log: TombstoneLog, path: Path) -> None:
    log.append(tombstone(1))
    log.append(tombstone(2))
    later = tombstone(1, at=NOW + timedelta(seconds=5))
    assert log.append(later) == 0
    assert FileTombstoneLog(path).append(later) == 0
    assert len(log.entries()) == 2


def test_a_fence_decided_again_with_other_epochs_is_a_further_entry(log: TombstoneLog) -> None:
    assert log.append(tombstone(1, epoch=2)) == 0
    assert log.append(tombstone(1, epoch=3)) == 1
    assert log.append(tombstone(1, epoch=2)) == 0
    assert newest_epochs(log.entries()) == {(RUN, COHORT): 3}


def test_only_clients_that_left_entirely_are_erased_clients() -> None:
    entries = [tombstone(1), tombstone(2, scope="samples")]
    assert erased_clients(entries) == {UUID(int=1001)}


def test_an_entry_is_on_the_disk_before_append_returns(
    log: TombstoneLog, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    fsync = os.fsync

    def watch(fd: int) -> None:
        synced.append(Path(f"/proc/self/fd/{fd}").readlink())
        fsync(fd)

    monkeypatch.setattr(os, "fsync", watch)
    log.append(tombstone(1))
    assert synced[-1] == path
    assert {path.parent, path.parent.parent, path.parent.parent.parent} <= set(synced)
    synced.clear()
    log.append(tombstone(1))
    assert synced == [path]  # found, but whoever wrote it may not have got so far


def test_appends_from_many_threads_and_two_logs_form_one_chain(path: Path) -> None:
    logs = [FileTombstoneLog(path), FileTombstoneLog(path)]
    with ThreadPoolExecutor(8) as pool:
        indexes = list(pool.map(lambda number: logs[number % 2].append(tombstone(number)), range(40)))
    assert sorted(indexes) == list(range(40))
    entries = FileTombstoneLog(path).entries()
    assert [entries[index].request_id.int for index in indexes] == list(range(40))


def test_killed_processes_leave_every_acknowledged_entry(path: Path) -> None:
    program = """
import sys
from pathlib import Path
from coordinator.tombstones.files import FileTombstoneLog
from tests.contract.test_tombstones import tombstone
log = FileTombstoneLog(Path(sys.argv[1]))
for number in range(10**6):
    log.append(tombstone(number))
    print(number, flush=True)
"""
    child = subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    with child:
        acknowledged = [int(child.stdout.readline()) for _ in range(20)]
        child.send_signal(signal.SIGKILL)
        acknowledged += [int(line) for line in child.stdout.read().splitlines() if line]
    numbers = [entry.request_id.int for entry in FileTombstoneLog(path).entries()]
    assert numbers[: len(acknowledged)] == acknowledged


def test_a_line_torn_anywhere_is_cut_off_and_the_log_goes_on(path: Path) -> None:
    whole = written(path, 3)
    second_end = whole.rindex(b"\n", 0, -1) + 1
    for length in range(second_end, len(whole) - 1, 5):
        path.write_bytes(whole[:length])
        assert len(FileTombstoneLog(path).entries()) == 2
        assert path.stat().st_size == second_end
        assert FileTombstoneLog(path).append(tombstone(2)) == 2
        assert path.read_bytes() == whole


def test_an_entry_that_lacks_only_its_line_feed_is_kept(path: Path) -> None:
    whole = written(path, 3)
    path.write_bytes(whole[:-1])
    assert len(FileTombstoneLog(path).entries()) == 3
    assert path.read_bytes() == whole


def test_a_tail_of_zeros_after_a_power_cut_is_cut_off(path: Path) -> None:
    whole = written(path, 2)
    path.write_bytes(whole + bytes(100))
    assert len(FileTombstoneLog(path).entries()) == 2
    assert path.read_bytes() == whole


def test_a_flipped_byte_anywhere_is_noticed_and_nothing_is_cut(path: Path) -> None:
    whole = written(path, 2)
    for position in range(len(whole)):
        changed = bytearray(whole)
        changed[position] ^= 1 << position % 8
        path.write_bytes(changed)
        with pytest.raises(LogCorrupt):
            FileTombstoneLog(path).entries()
        assert path.read_bytes() == changed


def test_nothing_is_appended_to_a_corrupt_log(path: Path) -> None:
    changed = written(path, 2).replace(b'"scope":"client"', b'"scope":"samples"', 1)
    path.write_bytes(changed)
    with pytest.raises(LogCorrupt, match="line 1 was changed"):
        FileTombstoneLog(path).append(tombstone(9))
    assert path.read_bytes() == changed


@pytest.mark.parametrize("order", [(1,), (0, 2), (1, 0), (0, 0, 1), (0, 1, 1)])
def test_removed_moved_or_repeated_lines_are_noticed(path: Path, order: tuple[int, ...]) -> None:
    lines = written(path, 3).splitlines(keepends=True)
    path.write_bytes(b"".join(lines[index] for index in order))
    with pytest.raises(LogCorrupt, match="does not follow"):
        FileTombstoneLog(path).entries()


@pytest.mark.parametrize("harm", ["cut", "replaced", "removed"])
def test_a_log_that_lost_entries_while_in_use_is_noticed(log: TombstoneLog, path: Path, harm: str) -> None:
    for number in range(3):
        log.append(tombstone(number))
    lines = path.read_bytes().splitlines(keepends=True)
    if harm == "cut":
        os.truncate(path, len(lines[0]))
    else:
        path.unlink()
    if harm == "replaced":
        path.write_bytes(lines[0])
    with pytest.raises(LogCorrupt, match="while it was in use"):
        log.append(tombstone(9))


def test_an_entry_for_which_there_is_no_room_is_not_in_the_log(
    log: TombstoneLog, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.append(tombstone(1))
    write = os.write

    def short_then_full(fd: int, data: Any) -> int:
        if len(data) > 10:
            return write(fd, data[:-10])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", short_then_full)
        with pytest.raises(OSError, match="No space left"):
            log.append(tombstone(2))
    assert len(FileTombstoneLog(path).entries()) == 1
    assert log.append(tombstone(2)) == 1


def test_an_append_reads_nothing_that_was_checked_before(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = FileTombstoneLog(path)
    num_read = 0
    pread = os.pread

    def count(fd: int, length: int, offset: int) -> bytes:
        nonlocal num_read
        data = pread(fd, length, offset)
        num_read += len(data)
        return data

    monkeypatch.setattr(os, "pread", count)
    for number in range(50):
        log.append(tombstone(number))
    assert num_read == 0


def test_entries_of_earlier_releases_do_not_say_who_filed_and_keep_their_digests(path: Path) -> None:
    old = written(path, 2)
    assert b"requested_by" not in old and digests.of_bytes(old) == OLD_LOG
    log = FileTombstoneLog(path)
    by = f"credential:{UUID(int=7)}"
    log.append(tombstone(2, requested_by=by))
    assert path.read_bytes().startswith(old)
    assert [entry.requested_by for entry in FileTombstoneLog(path).entries()] == [None, None, by]
    assert log.append(tombstone(1, requested_by=by)) == 1  # said before, by whom does not matter


def test_contents_name_every_beginning_of_the_log(log: TombstoneLog, path: Path) -> None:
    assert log.contents().entries == () and log.stamp() is None
    seen = [log.contents().digests[0]]
    for number in range(4):
        log.append(tombstone(number))
        found = FileTombstoneLog(path).contents()
        seen.append(found.digests[-1])
        assert found == log.contents() and found.stamp == log.stamp()
        assert list(found.digests) == seen and len(set(seen)) == number + 2
        assert found.entries == log.entries()


@pytest.mark.parametrize("harm", ["cut", "emptied", "replaced", "removed", "rewritten"])
def test_contents_are_what_is_there_now(log: TombstoneLog, path: Path, harm: str) -> None:
    """Who asks for them knows what must be there; a log that comes back is used again."""
    whole = written(path, 3)
    assert len(log.contents().entries) == 3
    first, before = whole[: whole.index(b"\n") + 1], log.stamp()
    other = FileTombstoneLog(path.with_name("other"))
    for number in range(10, 14):
        other.append(tombstone(number))
    if harm in ("removed", "replaced"):
        path.unlink()
    if harm != "removed":
        others = path.with_name("other").read_bytes()
        path.write_bytes({"emptied": b"", "rewritten": others}.get(harm, first))
    assert log.stamp() != before
    assert len(log.contents().entries) == {"cut": 1, "replaced": 1, "rewritten": 4}.get(harm, 0)
    path.write_bytes(whole)
    assert len(log.contents().entries) == 3
    assert log.append(tombstone(3)) == 3


def test_what_lies_before_the_damage_is_salvaged_and_the_damaged_log_is_kept(log: TombstoneLog, path: Path) -> None:
    lines = written(path, 4).splitlines(keepends=True)
    assert log.salvage() == 0
    damaged = b"".join([*lines[:2], lines[2].replace(b"client", b"samples", 1), lines[3]])
    path.write_bytes(damaged)
    assert log.salvage() == len(damaged) - len(lines[0] + lines[1])
    assert path.read_bytes() == lines[0] + lines[1]
    assert path.with_name(f"{path.name}.damaged-1").read_bytes() == damaged
    assert log.append(tombstone(2)) == 2
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@given(
    fenced=st.lists(st.integers(0, 5), max_size=8),
    kept=st.integers(0, 8),
    later=st.lists(st.integers(6, 9), max_size=3),
    num_known=st.integers(0, 8),
)
def test_a_log_has_what_a_database_knows_exactly_when_it_begins_with_it(
    fenced: list[int], kept: int, later: list[int], num_known: int
) -> None:
    """Whatever was appended, cut off, and appended again by somebody else."""
    with tempfile.TemporaryDirectory() as directory:
        log = FileTombstoneLog(Path(directory, "log"))
        for number in fenced:
            log.append(tombstone(number))
        before = log.contents()
        known = before.entries[:num_known]
        mark = Mark(len(known), before.digests[len(known)])
        if Path(directory, "log").exists():
            lines = Path(directory, "log").read_bytes().splitlines(keepends=True)
            Path(directory, "log").write_bytes(b"".join(lines[:kept]))
        log = FileTombstoneLog(Path(directory, "log"))
        for number in later:
            log.append(tombstone(number))
        after = log.contents()
        if after.entries[: len(known)] == known:
            check(after, mark)
        else:
            with pytest.raises(EvidenceLost, match="accept-loss"):
                check(after, mark)
