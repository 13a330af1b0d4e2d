"""What a client keeps between its tasks."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
import torch

from worker.kept import DROPPED_AFTER_S, FORGOTTEN_AFTER_S, KeptSets

SET = {"x": torch.arange(6.0).reshape(2, 3), "y": torch.tensor([1, 0])}


class Clock:
    def __init__(self) -> None:
        self.now = 1e9

    def __call__(self) -> float:
        return self.now


def kept(tmp_path: Path, clock: Clock | None = None) -> KeptSets:
    return KeptSets(tmp_path / "sets", tmp_path / "keys" / "client.key", clock or Clock())


def same(found: dict[str, torch.Tensor] | None) -> bool:
    return found is not None and found.keys() == SET.keys() and all(torch.equal(found[n], SET[n]) for n in SET)


@pytest.mark.parametrize("on_disk", [True, False])
def test_what_is_written_is_read_again(on_disk: bool, tmp_path: Path) -> None:
    own = kept(tmp_path) if on_disk else KeptSets()
    assert own.read("recovery/1") is None
    own.write("recovery/1", SET)
    assert same(own.read("recovery/1")) and own.read("recovery/2") is None
    own.drop("recovery/1")
    assert own.read("recovery/1") is None


def test_it_survives_a_restart_and_what_is_remembered_does_not(tmp_path: Path) -> None:
    own = kept(tmp_path)
    own.write("recovery/1", SET)
    own.remember("recovery", SET)
    again = kept(tmp_path)
    assert same(again.read("recovery/1")) and again.recall("recovery") is None


def test_nothing_of_it_is_plain_on_disk_or_open_to_others(tmp_path: Path) -> None:
    kept(tmp_path).write("recovery/1", SET)
    (path,) = (tmp_path / "sets").iterdir()
    assert SET["x"].numpy().tobytes() not in path.read_bytes() and "recovery" not in path.name
    for one in (path, path.parent, tmp_path / "keys" / "client.key"):
        assert not stat.S_IMODE(one.stat().st_mode) & 0o077


@pytest.mark.parametrize("damage", ["cut", "flip", "other key"])
def test_what_cannot_be_read_is_not_there(damage: str, tmp_path: Path) -> None:
    own = kept(tmp_path)
    own.write("recovery/1", SET)
    (path,) = (tmp_path / "sets").iterdir()
    if damage == "other key":
        (tmp_path / "keys" / "client.key").write_bytes(bytes(32))
    else:
        held = bytearray(path.read_bytes())
        held[-1] ^= 1
        path.write_bytes(held[:10] if damage == "cut" else held)
    assert own.read("recovery/1") is None


def test_another_recovery_of_the_cohort_takes_the_place_of_the_first(tmp_path: Path) -> None:
    own = kept(tmp_path)
    own.enter("run/all", "first")
    own.remember("first", 1)
    own.write("first/1", SET)
    own.write("distilled/a", SET)
    own.enter("run/other", "second")
    own.enter("run/all", "first")
    assert own.recall("first") == 1 and same(own.read("first/1"))
    own.enter("run/all", None)
    assert own.recall("first") is None and own.read("first/1") is None
    assert same(own.read("distilled/a")), "it belongs to no recovery"


def test_what_nobody_uses_goes_after_a_while(tmp_path: Path) -> None:
    clock = Clock()
    own = kept(tmp_path, clock)
    own.remember("first", 1)
    clock.now += FORGOTTEN_AFTER_S - 1
    own.forget_unused()
    assert own.recall("first") == 1
    clock.now += FORGOTTEN_AFTER_S + 1
    own.forget_unused()
    assert own.recall("first") is None
    own.write("first/1", SET)
    own.write("distilled/a", SET)
    later = Clock()
    later.now = max(path.stat().st_mtime for path in (tmp_path / "sets").iterdir()) + DROPPED_AFTER_S + 1
    again = kept(tmp_path, later)
    assert again.read("first/1") is None and same(again.read("distilled/a"))


def test_new_samples_to_leave_out_take_everything_and_known_ones_nothing(tmp_path: Path) -> None:
    own = kept(tmp_path)
    own.leave_out([3, 1])
    own.write("first/1", SET)
    kept(tmp_path).leave_out([1, 3])
    assert same(own.read("first/1"))
    kept(tmp_path).leave_out([1, 3, 4])
    assert own.read("first/1") is None


def test_the_key_goes_with_everything(tmp_path: Path) -> None:
    own = kept(tmp_path)
    own.write("first/1", SET)
    (path,) = (tmp_path / "sets").iterdir()
    copy = path.read_bytes()
    own.drop_all()
    assert not (tmp_path / "keys" / "client.key").exists() and not path.exists()
    path.write_bytes(copy)
    assert own.read("first/1") is None
