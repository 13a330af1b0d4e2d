"""Child processes: `lethe` commands, each in a process group of its own with its own log file."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

STOP_WITHIN_S: Final = 5.0
LOOPBACK: Final = "127.0.0.1,localhost"


class ProcessEnded(Exception):
    """A process that should be running has ended."""


@dataclass
class Child:
    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def tail(self, num_lines: int) -> list[str]:
        return self.log.read_text("utf-8", errors="replace").splitlines()[-num_lines:]

    def signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


class Children:
    """Leaving the `with` block ends every process, whatever happened in it."""

    def __init__(self, log_directory: Path) -> None:
        self._log_directory = log_directory
        self.children: dict[str, Child] = {}

    def start(self, name: str, *arguments: str, **environment: str) -> Child:
        """Run `lethe ARGUMENTS`, without the user's own LETHE_… settings and with no proxy before loopback."""
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("LETHE_")}
        log = self._log_directory / f"{name}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "lethe.cli", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={
                    **inherited,
                    "OMP_NUM_THREADS": "1",
                    "PYTHONUNBUFFERED": "1",
                    "NO_PROXY": LOOPBACK,
                    "no_proxy": LOOPBACK,
                    **environment,
                },
            )
        self.children[name] = Child(name, process, log)
        return self.children[name]

    def wait_for_line(self, child: Child, beginning: str, *, within_s: float) -> str:
        """The rest of the newest line of the child's log that begins so."""
        give_up_at = time.monotonic() + within_s
        while time.monotonic() < give_up_at:
            for line in reversed(child.tail(50)):
                if line.startswith(beginning):
                    return line.removeprefix(beginning).strip()
            self.check()
            time.sleep(0.05)
        raise ProcessEnded(f"{child.name} did not say {beginning.strip()!r} within {within_s:.0f} s")

    def check(self) -> None:
        for child in self.children.values():
            if (code := child.process.poll()) is not None:
                raise ProcessEnded(f"{child.name} ended with code {code}")

    def kill(self, name: str) -> Child:
        """SIGKILL: no chance to say goodbye."""
        child = self.children.pop(name)
        child.signal_group(signal.SIGKILL)
        child.process.wait()
        return child

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in self.children.values():
            child.signal_group(signal.SIGTERM)
        give_up_at = time.monotonic() + STOP_WITHIN_S
        for child in self.children.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(max(0.0, give_up_at - time.monotonic()))
            child.signal_group(signal.SIGKILL)
            child.process.wait()
