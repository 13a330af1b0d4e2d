"""The bundle that is committed is what its source builds, and it names nobody else's machine."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.browser import run_node

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "dashboard"
COMMITTED = ROOT / "coordinator" / "api" / "dashboard"
BIN = Path(sys.executable).parent
UNPACK = "process.stdout.write(require('zlib').brotliDecompressSync(require('fs').readFileSync(process.argv[1])))"
pytestmark = pytest.mark.timeout(600)


def contents(folder: Path) -> dict[str, bytes]:
    """By name and without compression, which differs from one zlib to the next."""
    plain = {path.name: path.read_bytes() for path in folder.glob("*.html")}
    return plain | {path.name.removesuffix(".gz"): gzip.decompress(path.read_bytes()) for path in folder.glob("*.gz")}


def test_a_fresh_build_is_the_bundle_that_is_committed(tmp_path: Path) -> None:
    kept = shutil.ignore_patterns("node_modules", "__pycache__")
    for part in ("dashboard", "openapi/clients/typescript", "services/audit/pages"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=kept)
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "LETHE_DASHBOARD_OUT": str(tmp_path / "out")}
    for command in (["npm", "ci"], ["npm", "run", "check"], ["npm", "run", "build"]):
        done = subprocess.run(
            command, cwd=tmp_path / "dashboard", env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    made, committed = contents(tmp_path / "out"), contents(COMMITTED)
    assert made.keys() == committed.keys() and made == committed, "run `make web`"


def test_both_compressed_files_hold_the_same() -> None:
    for name, content in contents(COMMITTED).items():
        if not name.endswith(".html"):
            assert run_node(UNPACK, str(COMMITTED / f"{name}.br")) == content.decode("utf-8"), name


def test_no_host_gets_into_the_lock_file_or_the_bundle() -> None:
    assert '"resolved"' not in (SOURCE / "package-lock.json").read_text("utf-8")
    for name, content in contents(COMMITTED).items():
        hosts = set(re.findall(rb"https?://([a-z0-9.-]+)", content))
        assert hosts <= {b"www.w3.org", b"react.dev", b"in-toto.io", b"lethe.dev", b"bit.ly", b"localhost"}, (
            name,
            hosts,
        )
