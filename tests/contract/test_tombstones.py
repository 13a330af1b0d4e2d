"""The log of tombstones: what it promises through crashes, repetition, company and tampering."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

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

NOW = datetime(2026, 3, 1, 9, 0, tzinfo=UTC)
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
