"""`lethe demo` as a user starts it: the whole story in few rounds, from the wheel, and nothing left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.installing import Installer

ROUNDS = 2
"""The coordinator is killed in the second."""


def start(*arguments: str, lethe: Sequence[str] = (sys.executable, "-m", "lethe.cli")) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*lethe, "demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "COLUMNS": "120"},
    )


def processes_that_mention(directory: Path) -> list[str]:
    """Command lines of running processes, from /proc."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            found.append(file.read_text(errors="replace").replace("\0", " "))
    return [line for line in found if str(directory) in line]


@pytest.mark.timeout(600)
def test_a_clinic_is_forgotten_although_the_coordinator_was_killed(tmp_path: Path) -> None:
    """The extra `compute`, installed alone from the wheel, suffices."""
    directory = tmp_path / "demo"
    (tmp_path / "installed").mkdir()
    installed = Installer(tmp_path / "installed").install("compute")
    demo = start("--rounds", str(ROUNDS), "--dir", str(directory), lethe=[installed.command])
    output, _ = demo.communicate(timeout=550)
    assert demo.returncode == 0, output
    assert "SIGKILL to the coordinator" in output
    assert f"clusters: completed, round {ROUNDS} of {ROUNDS}" in output
    assert f"tree: completed, round {ROUNDS} of {ROUNDS}" in output
    assert "reinit" in output and "<- auto" in output
    assert "cohorts serve the same bytes as before" in output
    assert "signatures ok" in output and "same digests (full)" in output
    assert "clinic-b is forgotten" in output
    certificate, key = str(directory / "certificate.json"), str(directory / "lethe.pub.pem")
    installed.succeed("verify", certificate, "--key", key)
    installed.succeed("doctor", "--home", str(directory / "coordinator"), "--deep")
    assert not processes_that_mention(directory)


@pytest.mark.timeout(300)
def test_a_demo_that_is_interrupted_cleans_up(tmp_path: Path) -> None:
    directory = tmp_path / "demo"
    demo = start("--dir", str(directory))
    assert demo.stdout is not None
    for line in demo.stdout:
        if line.startswith("enrolling"):
            break
    demo.send_signal(signal.SIGTERM)
    output, _ = demo.communicate(timeout=120)
    assert demo.returncode == 130, output
    assert not processes_that_mention(directory)


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    demo = start("--dir", str(tmp_path))
    output, _ = demo.communicate(timeout=60)
    assert demo.returncode == 2 and "is not empty" in output
