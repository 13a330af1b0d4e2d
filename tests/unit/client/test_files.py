"""Files that a command leaves behind are whole, or not there."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import NoReturn

import pytest

from lethe.client.files import write_whole


def test_a_file_that_cannot_be_finished_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "certificate.json"
    write_whole(file, b"first")

    def full(_: int) -> NoReturn:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(file, b"second")
    assert file.read_bytes() == b"first"
    monkeypatch.undo()
    write_whole(file, b"third")
    assert file.read_bytes() == b"third" and [found.name for found in tmp_path.iterdir()] == ["certificate.json"]


def test_a_private_file_is_its_owners_alone_although_others_could_read_the_one_before(tmp_path: Path) -> None:
    file = tmp_path / "opening.json"
    file.write_bytes(b"known to all")
    write_whole(file, b"opening", is_private=True)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
