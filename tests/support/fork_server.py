"""A process that has imported everything and forks: what it forks is a `lethe` command that need not import first.

Run by `tests/support/forked.py` with the address to listen on. Whoever connects sends a command line with its
environment, its working directory and its three files, and is told the pid, later the exit code. A child ends when
its connection ends, and everything ends when standard input does.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import selectors
import signal
import socket
import sys
import threading
from dataclasses import dataclass
from typing import Any, Final, NoReturn

PACKAGES: Final = ("lethe", "coordinator", "worker", "services", "migrations")
ALSO: Final = (
    "alembic.command",
    "asyncpg",
    "httptools",
    "ortools.sat.python.cp_model",
    "redis.asyncio",
    "sqlalchemy.dialects.postgresql.asyncpg",
    "sqlalchemy.dialects.sqlite.aiosqlite",
    "torch.optim",
    "uvicorn.protocols.http.httptools_impl",
    "uvloop",
)
"""What the packages import only when it is needed."""
_LENGTH_BYTES: Final = 4


@dataclass(frozen=True)
class Request:
    arguments: list[str]
    environment: dict[str, str]
    directory: str
    files: list[int]
    connection: socket.socket


def import_everything() -> None:
    for package in PACKAGES:
        _import(package)
        for module in pkgutil.walk_packages(sys.modules[package].__path__, f"{package}."):
            if not module.name.startswith(("migrations.", "lethe.new_task")) and not module.name.endswith("__main__"):
                _import(module.name)
    for name in ALSO:
        _import(name)


def _import(name: str) -> None:
    with contextlib.suppress(ImportError):  # an extra that is not installed
        importlib.import_module(name)


def receive(connection: socket.socket) -> Request | None:
    """None: somebody connected and went away again."""
    head, files, _, _ = socket.recv_fds(connection, _LENGTH_BYTES, 3)
    if len(head) < _LENGTH_BYTES:
        return None
    with connection.makefile("rb") as stream:
        said = json.loads(stream.read(int.from_bytes(head)))
    return Request(said["arguments"], said["environment"], said["directory"], files, connection)


def serve(address: str) -> Request | None:
    """Fork for each request. Returns it in the child, and None when standard input has ended."""
    listener, selector = socket.socket(socket.AF_UNIX), selectors.DefaultSelector()
    woken, wake = socket.socketpair()
    for one in (woken, wake):
        one.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake.fileno())
    listener.bind(address)
    listener.listen(64)
    connections: dict[int, socket.socket] = {}
    for readable in (0, listener, woken):
        selector.register(readable, selectors.EVENT_READ)
    os.write(1, b"ready\n")
    while True:
        for key, _ in selector.select():
            if key.fileobj == 0:
                _kill(connections)
                return None
            if key.fileobj is woken:
                woken.recv(4096)
                _report_the_ended(connections, selector)
            elif key.fileobj is listener:
                connection, _ = listener.accept()
                request = receive(connection)
                if request is None:
                    connection.close()
                    continue
                pid = os.fork()
                if pid == 0:
                    selector.close()
                    for one in (listener, woken, wake, *connections.values()):
                        one.close()
                    return request
                for file in request.files:
                    os.close(file)
                connections[pid] = connection
                selector.register(connection, selectors.EVENT_READ, pid)
            elif key.data in connections:  # its other end is closed: nobody waits for this child any more
                _kill({key.data: connections[key.data]})
                selector.unregister(key.fileobj)


def _report_the_ended(connections: dict[int, socket.socket], selector: selectors.BaseSelector) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            pid, status = ended
            connection = connections.pop(pid)
            with contextlib.suppress(KeyError):
                selector.unregister(connection)
            with contextlib.suppress(OSError):
                connection.sendall(b"ended %d\n" % os.waitstatus_to_exitcode(status))
            connection.close()


def _kill(connections: dict[int, socket.socket]) -> None:
    for pid in connections:
        os.kill(pid, signal.SIGKILL)


def become(request: Request) -> None:
    """From here on this process is what `python -P -m lethe.cli …` would be."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    for place, file in enumerate(request.files):
        os.dup2(file, place)
        os.close(file)
    os.environ.clear()
    os.environ.update(request.environment)
    os.chdir(request.directory)
    request.connection.sendall(b"started %d\n" % os.getpid())  # not before: whoever knows it may signal its session
    request.connection.close()
    import coordinator.crashpoints
    import lethe.cli

    importlib.reload(coordinator.crashpoints)  # it looks into the environment when it is imported
    sys.argv = [str(lethe.cli.__file__), *request.arguments]
    sys.modules["__main__"] = lethe.cli  # for `multiprocessing`


def run_to_its_end() -> NoReturn:
    """Do what Python does at the end of a process, but for taking apart each module: that takes longest."""
    from lethe.cli import main as lethe

    code: Any = 0
    try:
        lethe()
    except SystemExit as end:
        code = end.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    if isinstance(code, str):
        print(code, file=sys.stderr)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def main() -> None:
    sys.path.pop(0)
    import_everything()
    gc.collect()
    gc.freeze()
    request = serve(sys.argv[1])
    if request is not None:
        become(request)
        run_to_its_end()


if __name__ == "__main__":
    main()
