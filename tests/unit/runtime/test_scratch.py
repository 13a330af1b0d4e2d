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


def test_a_file_is_safe_while_it_is_written_and_gone_afterwards(tmp_path: Path) -> None:
    scratch, other = Scratch(tmp_path / "scratch"), Scratch(tmp_path / "scratch")
    with scratch.file() as path, scratch.file() as second:
        path.write_bytes(b"half a model")
        assert other.sweep() == 0 and path.exists() and second.parent == path.parent
    assert not path.exists()
    with scratch.file() as path:
        path.write_bytes(b"a model")
        path.rename(tmp_path / "moved")  # as the blob store does
    scratch.close()
    assert list((tmp_path / "scratch").iterdir()) == []
