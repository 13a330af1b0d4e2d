"""What tests fork in place of starting it behaves as the command does that a shell starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.forked import Forked, run_lethe, write_command


def test_it_prints_and_ends_as_the_started_command_does(tmp_path: Path) -> None:
    for arguments in (["--version"], ["no-such-command"], ["verify", "no-such-file", "--key", "no-such-key"]):
        started = subprocess.run(
            [sys.executable, "-P", "-m", "lethe.cli", *arguments], cwd=tmp_path, capture_output=True, text=True
        )
        forked = run_lethe(*arguments, cwd=tmp_path)
        assert (forked.returncode, forked.stdout, forked.stderr) == (
            started.returncode,
            started.stdout,
            started.stderr,
        )


def test_its_environment_and_directory_are_those_that_it_was_given(tmp_path: Path) -> None:
    told = run_lethe("new", "flats", cwd=tmp_path, env={**os.environ, "LETHE_NO_SUCH": "1"})
    assert told.returncode != 0 and "LETHE_NO_SUCH" in told.stderr
    assert run_lethe("new", "flats", cwd=tmp_path).returncode == 0
    assert (tmp_path / "flats" / "run.yaml").is_file()


def test_a_directory_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="could not be forked"):
        run_lethe("--version", cwd=tmp_path / "nowhere")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_signal_ends_it(tmp_path: Path, number: signal.Signals) -> None:
    process = Forked(["--url", "http://127.0.0.1:9", "--wait", "60", "runs", "list"], cwd=tmp_path)
    assert process.poll() is None and os.getsid(process.pid) == process.pid
    process.send_signal(number)
    assert process.wait(30) == -number == process.poll()


def test_it_ends_with_whoever_started_it(tmp_path: Path) -> None:
    process = Forked(["--url", "http://127.0.0.1:9", "--wait", "60", "runs", "list"], cwd=tmp_path)
    process.close()
    give_up_at = time.monotonic() + 30
    while Path(f"/proc/{process.pid}/cmdline").exists() and time.monotonic() < give_up_at:
        time.sleep(0.01)
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


def test_a_shell_runs_it_and_is_told_how_it_ended(tmp_path: Path) -> None:
    write_command(tmp_path)
    script = "lethe --version; lethe no-such-command 2> said || echo $?; lethe --help | head -1 > help"
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines()[1:] == ["2"] and done.stdout.startswith("lethe ")
    assert "no-such-command" in (tmp_path / "said").read_text()
