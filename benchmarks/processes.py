"""Child processes of a benchmark: started here, watched through /proc, ended here whatever happens."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

ROOT: Final = Path(__file__).parents[1]
END_WITHIN_S: Final = 15.0
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_PR_SET_PDEATHSIG: Final = 1


class ProcessDied(Exception):
    """A process that the measurement needs ended, or never became ready."""


def start_python(
    arguments: Sequence[str], output: IO[bytes], environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """`python -m ARGUMENTS`, which ends with this process."""
    return subprocess.Popen(
        [sys.executable, "-m", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        cwd=ROOT,
        env=environment,
        preexec_fn=_die_with_parent,
    )


class Child:
    """A Python module in a process of its own, with its output in a log file."""

    def __init__(self, name: str, arguments: Sequence[str], log: Path, environment: Mapping[str, str] = {}) -> None:
        self.name, self.log = name, log
        with log.open("ab") as output:
            self._process = start_python(
                arguments, output, {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **environment}
            )
        self.pid = self._process.pid

    def expect_alive(self) -> None:
        if (code := self._process.poll()) is not None:
            raise ProcessDied(f"{self.name} ended with {code}:\n{self.tail()}")

    def wait(self, timeout_s: float) -> None:
        """Until it ends by itself, successfully."""
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise ProcessDied(f"{self.name} did not finish within {timeout_s:.0f} s:\n{self.tail()}") from None
        if code != 0:
            raise ProcessDied(f"{self.name} ended with {code}:\n{self.tail()}")

    def tail(self) -> str:
        return self.log.read_text("utf-8", errors="replace")[-3000:]

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_WITHIN_S)
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()


@contextmanager
def running(name: str, arguments: Sequence[str], log: Path, environment: Mapping[str, str] = {}) -> Iterator[Child]:
    child = Child(name, arguments, log, environment)
    try:
        yield child
    finally:
        child.end()


@contextmanager
def tidy_when_terminated() -> Iterator[None]:
    """SIGTERM unwinds the stack, so that processes end and temporary files go. Main thread only."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Watch:
    """Peak memory and CPU seconds of processes and their descendants, sampled until the `with` block ends."""

    def __init__(self, *roots: int, every_s: float = 0.05) -> None:
        self._roots, self._every_s = roots, every_s
        self._peaks_kb: dict[int, int] = {}
        self._cpu_s: dict[int, float] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._sample_until_stopped, daemon=True)

    def __enter__(self) -> Watch:
        self._sample()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        self._sample()

    @property
    def peak_rss_mb(self) -> float:
        """The sum of every process's own peak (VmHWM since it started), in 10^6 bytes."""
        return sum(self._peaks_kb.values()) * 1024 / 1e6

    def cpu_s(self) -> float:
        """Up to this moment, user and system, since the processes started."""
        self._sample()
        return sum(self._cpu_s.values())

    def _sample_until_stopped(self) -> None:
        while not self._stopped.wait(self._every_s):
            self._sample()

    def _sample(self) -> None:
        for pid in [pid for root in self._roots for pid in family(root)]:
            with suppress(OSError, KeyError, ValueError):  # it has just ended
                self._peaks_kb[pid] = max(status_kb(pid, "VmHWM"), self._peaks_kb.get(pid, 0))
                self._cpu_s[pid] = cpu_seconds(pid)


def family(root: int) -> list[int]:
    """The process and its descendants."""
    found = [root]
    for pid in found:
        with suppress(OSError):
            for thread in Path(f"/proc/{pid}/task").iterdir():
                found += map(int, (thread / "children").read_text().split())
    return found


def status_kb(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0])
    raise KeyError(field)


def cpu_seconds(pid: int) -> float:
    figures = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(figures[11]) + int(figures[12])) / _TICKS_PER_S


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(child: Child, port: int, timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        child.expect_alive()
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        if time.monotonic() > deadline:
            raise ProcessDied(f"{child.name} does not listen:\n{child.tail()}")
        time.sleep(0.02)


def _die_with_parent() -> None:
    """In the child, before it runs: the kernel ends it when the benchmark is killed and cannot."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
