"""Processes that share a directory of keys, and processes that die over it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest

from coordinator.keys.directory import DirectoryKeys
from coordinator.keys.port import Destroyed, client_key, cohort_key

ROOT = Path(__file__).parents[3]
ONE, TWO, OTHER = client_key(UUID(int=1)), cohort_key(UUID(int=2), 3), client_key(UUID(int=4))

MAKE_WHEN_TOLD = """
import sys
from pathlib import Path
from coordinator.keys.directory import DirectoryKeys

keys = DirectoryKeys(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
print(*(keys.find_or_make(name).hex() for name in sys.argv[2:]), flush=True)
"""

KILL_AT_EVERY_LINE = """
import itertools, os, signal, sys
from pathlib import Path
from coordinator.keys import directory
from coordinator.keys.directory import DirectoryKeys

root, (one, two, other) = Path(sys.argv[2]), sys.argv[3:]
ZEROS = bytes(32)

def is_killed(at, work):
    '''Do the work in a process that is killed before it runs line `at` of the module, counted as they are run.'''
    if (pid := os.fork()) == 0:
        left = at
        def trace(frame, event, argument):
            nonlocal left
            if frame.f_code.co_filename != directory.__file__:
                return None
            if event == "line":
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left -= 1
            return trace
        sys.settrace(trace)
        work()
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    assert status in (0, signal.SIGKILL), status
    return status != 0

def files(path):
    return {file.name for file in path.iterdir()} - {".lock"}

def make(at):
    return make_and(at, "destroy") | make_and(at, "make")

def make_and(at, then):
    place = root / f"{at}-{then}"
    bystander = DirectoryKeys(place)
    kept = bystander.find_or_make(other)
    killed = is_killed(at, lambda: DirectoryKeys(place).find_or_make(one))
    found = bystander.find(one)
    assert found is None or len(found) == 32 and found != ZEROS
    assert bystander.names() == ({other} if found is None else {one, other})
    if then == "destroy":
        DirectoryKeys(place).destroy([two])
    else:
        assert DirectoryKeys(place).find_or_make(two) not in (found, kept)
    assert not any(name.startswith(".") for name in files(place))
    made = DirectoryKeys(place).find_or_make(one)
    assert found in (None, made) and bystander.find(one) == made
    assert bystander.find(other) == kept
    return killed

def destroy(at):
    place = root / str(at)
    bystander = DirectoryKeys(place)
    before = {name: bystander.find_or_make(name) for name in (one, two, other)}
    for name in (one, two):
        bystander.find(name)
        os.link(place / name, root / f"{at}-{name}")
    killed = is_killed(at, lambda: DirectoryKeys(place).destroy([one, two]))
    for name in (one, two):
        assert bystander.find(name) in (None, before[name])
        assert DirectoryKeys(place).find(name) == bystander.find(name)
    assert bystander.names() == {name for name in before if bystander.find(name)}
    DirectoryKeys(place).destroy([one, two])
    assert [bystander.find(name) for name in (one, two, other)] == [None, None, before[other]]
    assert all((root / f"{at}-{name}").read_bytes() == ZEROS for name in (one, two))
    return killed

work = {"make": make, "destroy": destroy}[sys.argv[1]]
print(next(at for at in itertools.count() if not work(at)))
"""


def run(script: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_processes_that_make_a_key_at_once_get_the_same(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MAKE_WHEN_TOLD, str(tmp_path / "keys"), ONE, TWO]
    makers = [
        subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(8)
    ]
    for maker in makers:
        assert maker.stdout and maker.stdout.readline() == "ready\n"
    for maker in makers:
        assert maker.stdin
        maker.stdin.write("\n")
        maker.stdin.flush()
    made = {maker.communicate()[0] for maker in makers}
    keys = DirectoryKeys(tmp_path / "keys")
    assert made == {" ".join(str((keys.find(name) or b"").hex()) for name in (ONE, TWO)) + "\n"}
    assert {maker.returncode for maker in makers} == {0}


def test_a_key_that_another_process_destroyed_is_not_remembered(tmp_path: Path) -> None:
    keys = DirectoryKeys(tmp_path)
    made = keys.find_or_make(ONE)
    assert keys.find(ONE) == made
    destroyer = DirectoryKeys(tmp_path)
    destroyer.destroy([ONE])
    assert keys.find(ONE) is None


def test_a_key_that_was_overwritten_and_not_yet_removed_is_destroyed(tmp_path: Path) -> None:
    keys = DirectoryKeys(tmp_path)
    made = keys.find_or_make(ONE)
    assert keys.find(ONE) == made
    (tmp_path / ONE).write_bytes(bytes(32))
    assert keys.find(ONE) is None and DirectoryKeys(tmp_path).find(ONE) is None
    assert keys.names() == set()
    with pytest.raises(Destroyed):
        keys.find_or_make(ONE)


def test_a_destroyed_key_is_overwritten_wherever_its_file_is_linked(tmp_path: Path) -> None:
    keys = DirectoryKeys(tmp_path / "keys")
    keys.find_or_make(ONE)
    os.link(tmp_path / "keys" / ONE, tmp_path / "held")
    keys.destroy([ONE])
    assert (tmp_path / "held").read_bytes() == bytes(32)


def test_one_who_is_killed_while_making_a_key_leaves_none_or_a_whole_one(tmp_path: Path) -> None:
    assert int(run(KILL_AT_EVERY_LINE, "make", str(tmp_path), ONE, TWO, OTHER)) > 30


def test_a_destruction_that_was_killed_anywhere_is_completed_by_repeating_it(tmp_path: Path) -> None:
    assert int(run(KILL_AT_EVERY_LINE, "destroy", str(tmp_path), ONE, TWO, OTHER)) > 30


def test_unfinished_keys_and_strangers_files_are_no_keys(tmp_path: Path) -> None:
    keys = DirectoryKeys(tmp_path)
    keys.find_or_make(ONE)
    for name in (".new-abc", ".new-key", "0" * 32, "README"):
        (tmp_path / name).write_bytes(b"k" * 32)
    assert keys.names() == {ONE}
    keys.destroy([TWO])
    assert {path.name for path in tmp_path.iterdir()} == {ONE, TWO, ".lock", "0" * 32, "README"}


def test_only_the_owner_can_read_keys_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        keys = DirectoryKeys(tmp_path / "evidence" / "keys")
        keys.find_or_make(ONE)
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "evidence" / "keys").iterdir()} == {0o600}
    for directory in (tmp_path / "evidence", tmp_path / "evidence" / "keys"):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_a_directory_that_takes_no_writes_is_told_by_the_probe(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    keys = DirectoryKeys(tmp_path / "file")
    with pytest.raises(OSError, match="file"):
        keys.probe()
    with pytest.raises(OSError, match="file"):
        keys.find_or_make(ONE)
    keys.destroy([])
    DirectoryKeys(tmp_path / "new").probe()
    assert list((tmp_path / "new").iterdir()) == []


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was written to the disk for good, in order: a directory or a file."""
    done: list[str] = []
    fsync = os.fsync

    def record(fd: int) -> None:
        fsync(fd)
        done.append("directory" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file")

    monkeypatch.setattr(os, "fsync", record)
    return done


def test_a_key_is_on_the_disk_before_anybody_is_given_it(tmp_path: Path, synced: list[str]) -> None:
    keys, other = DirectoryKeys(tmp_path), DirectoryKeys(tmp_path)
    keys.probe()
    synced.clear()
    keys.find_or_make(ONE)
    assert synced == ["file", "directory"]
    synced.clear()
    other.find(ONE)  # who made it may have died before it had come so far
    assert synced == ["directory"]
    other.find(ONE)
    assert synced == ["directory"]


def test_many_keys_are_destroyed_with_one_sync_of_the_directory(tmp_path: Path, synced: list[str]) -> None:
    keys = DirectoryKeys(tmp_path)
    names = [client_key(UUID(int=number)) for number in range(20)]
    for name in names:
        keys.find_or_make(name)
    synced.clear()
    keys.destroy(names)
    assert synced == ["file"] * 20 + ["directory"]


def test_an_experiment_does_not_wait_for_the_disk(tmp_path: Path, synced: list[str]) -> None:
    keys = DirectoryKeys(tmp_path / "keys", is_durable=False)
    keys.probe()
    made = keys.find_or_make(ONE)
    assert keys.find(ONE) == made
    keys.destroy([ONE])
    assert synced == []
