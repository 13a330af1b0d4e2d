"""Processes of the `lethe` command that start at once, because they are forked from one that has imported everything.

Importing takes most of the time of a short-lived process. These are processes like any other: each has a pid, a
session, an environment and files of its own, and a signal ends it. Tests of the start itself, of the installed command
and of what is imported use `subprocess`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Final

ROOT: Final = Path(__file__).parents[2]
_ONE_THREAD: Final = {"OMP_NUM_THREADS": "1"}
_COMMAND: Final = """#!{python} -IS
import json, os, signal, socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect({address!r})
request = {{"arguments": sys.argv[1:], "environment": dict(os.environ), "directory": os.getcwd()}}
body = json.dumps(request).encode()
socket.send_fds(connection, [len(body).to_bytes(4)], [0, 1, 2])
connection.sendall(body)
said = connection.makefile("rb")
pid = int(said.readline().removeprefix(b"started "))
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) != signal.SIG_IGN:
        signal.signal(number, lambda number, frame: os.kill(pid, number))
code = int(said.readline().removeprefix(b"ended "))
if code < 0:
    signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


class Forked:
    """Like `subprocess.Popen`, as far as tests need it."""

    def __init__(
        self,
        arguments: list[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdout: IO[bytes] | None = None,
        stderr: IO[bytes] | None = None,
    ) -> None:
        """Without a file for its errors they go where its output goes; without any, nowhere. It reads nothing."""
        self.args = ["lethe", *arguments]
        self.returncode: int | None = None
        request = {
            "arguments": arguments,
            "environment": dict(os.environ if env is None else env),
            "directory": str(cwd or Path.cwd()),
        }
        body = json.dumps(request).encode()
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(_server())
        with Path(os.devnull).open("r+b") as nothing:
            out = stdout or nothing
            files = [one.fileno() for one in (nothing, out, stderr or out)]
            socket.send_fds(self._connection, [len(body).to_bytes(4)], files)
            self._connection.sendall(body)
        self._said = self._connection.makefile("rb")
        self.pid = self._number("started")

    def poll(self) -> int | None:
        return self._await(0.0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._await(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """What still runs is killed."""
        self._said.close()
        self._connection.close()

    def _await(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            self._connection.settimeout(timeout)
            try:
                if self._connection.recv(1, socket.MSG_PEEK) == b"":
                    raise RuntimeError("the process that forks has ended")
            except (TimeoutError, BlockingIOError):
                return None
            self._connection.settimeout(None)
            self.returncode = self._number("ended")
            self.close()
        return self.returncode

    def _number(self, what: str) -> int:
        word, _, number = self._said.readline().decode().partition(" ")
        if word != what:
            self.close()
            raise RuntimeError(f"the process could not be forked: {word} {number}")
        return int(number)


def run_lethe(
    *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None, timeout: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `lethe ARGUMENTS` to its end and keep what it prints."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = Forked(list(arguments), env=env, cwd=cwd, stdout=out, stderr=err)
        try:
            code = process.wait(timeout)
        finally:
            process.close()
        said = []
        for file in (out, err):
            file.seek(0)
            said.append(file.read().decode(errors="replace"))
    return subprocess.CompletedProcess(process.args, code, *said)


def write_command(directory: Path) -> None:
    """Make `lethe` in this directory a command for shells. It passes signals on, and ends as its process does."""
    command = directory / "lethe"
    command.write_text(_COMMAND.format(python=sys.executable, address=_server()))
    command.chmod(0o755)


@functools.cache
def _server() -> str:
    """The address of the process that forks, which ends with this one."""
    directory = tempfile.mkdtemp(prefix="lethe-forks-")
    address = str(Path(directory) / "socket")
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "tests.support.fork_server", address],
        cwd=ROOT,
        env={**{name: value for name, value in os.environ.items() if not name.startswith("LETHE_")}, **_ONE_THREAD},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None
    if process.stdout.readline() != b"ready\n":
        raise RuntimeError(f"the process that forks did not start: exit code {process.wait()}")

    def end() -> None:
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        process.wait()
        shutil.rmtree(directory, ignore_errors=True)

    atexit.register(end)
    return address
