from __future__ import annotations

from pathlib import Path

from coordinator.runtime.scratch import Scratch


def test_only_what_nobody_uses_is_swept(tmp_path: Path) -> None:
    scratch, other = Scratch(tmp_path / "scratch"), Scratch(tmp_path / "scratch")
    assert scratch.sweep() == 0
    with scratch.directory() as used:
        (used / "update").write_bytes(b"plain")
        left = tmp_path / "scratch" / "of-a-killed-process"
        left.mkdir()
        (left / "update").write_bytes(b"plain")
        assert other.sweep() == 1
        assert not left.exists() and (used / "update").read_bytes() == b"plain"
    assert list((tmp_path / "scratch").iterdir()) == []
