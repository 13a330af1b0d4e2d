"""`lethe serve`: the coordinator's HTTP process."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Final

import typer

from lethe.failures import UNUSABLE, CommandFailed, how_to_install, require
from lethe.process import (
    BlobStore,
    Compute,
    DatabaseUrl,
    Home,
    RedisUrl,
    open_coordinator,
    prepare_process,
    refuse_old_schema,
    settings_from,
    upgrade_schema,
)
from lethe.target import examples

if TYPE_CHECKING:
    from coordinator.runtime.settings import Settings

LOCK_HELD_S: Final = 0.0005
"""How long a thread may keep Python's lock while another waits for it: checks of uploads and kernels run beside the
event loop, a short stretch at a time."""
HELP = examples(
    "lethe serve",
    "lethe serve --home /srv/lethe --host 0.0.0.0",
    "LETHE_DATABASE_URL=postgresql+asyncpg://lethe@db/lethe LETHE_REDIS_URL=redis://cache lethe serve --compute none",
)


def serve(
    home: Home = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; else LETHE_HOST or 127.0.0.1.")] = None,
    port: Annotated[
        int | None, typer.Option(help="Port to listen on, 0 for any free one; else LETHE_PORT or 8440.")
    ] = None,
    database_url: DatabaseUrl = None,
    redis_url: RedisUrl = None,
    blobs: BlobStore = None,
    compute: Annotated[
        Compute | None,
        typer.Option(help="threads: aggregate here; none: leave it to `lethe compute`; else LETHE_COMPUTE or threads."),
    ] = None,
) -> None:
    """Run a coordinator. With no options: SQLite and files under ./lethe-data, on http://127.0.0.1:8440.

    On Postgres it refuses to start while the schema is behind: run `lethe db upgrade` first.
    Ends gracefully on SIGTERM; SIGKILL is safe, too.
    """
    require("coordinator", "fastapi", "uvicorn", "uvloop", "sqlalchemy")
    import uvloop

    settings = settings_from(
        home=home,
        host=host,
        port=port,
        database_url=database_url,
        redis_url=redis_url,
        blobs=blobs,
        compute=compute,
    )
    prepare_process(settings)
    _refuse_what_would_fail_later(settings)
    sys.setswitchinterval(LOCK_HELD_S)
    listener = _listen(settings.host, settings.port)  # from now on clients wait instead of being turned away
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, listener))


async def _serve(settings: Settings, listener: socket.socket) -> None:
    from coordinator.api.app import create_app
    from coordinator.api.server import Server
    from coordinator.runtime.served_addresses import announced

    coordinator = open_coordinator(settings)
    if settings.is_embedded:
        await upgrade_schema(coordinator)
    else:
        await refuse_old_schema(coordinator)
    url = f"http://{_bracketed(settings.host)}:{listener.getsockname()[1]}"

    class Announced(Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                gc.collect()
                gc.freeze()  # what is there now stays: no need to look through it again and again
                _announce(settings, url)

    app = create_app(coordinator)
    async with app.router.lifespan_context(app):  # around the server, so that what hinders the start is told
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)  # uvicorn raises the signal again when it is done: end with code 0
        with announced(settings.home, url):
            await Announced(app, settings, lifespan="off").serve(sockets=[listener])


def _refuse_what_would_fail_later(settings: Settings) -> None:
    from coordinator.runtime.accounts import AdminTokenUnusable, chosen_admin_token

    missing = [package for package in ("torch", "ortools") if find_spec(package) is None]
    if settings.compute == "threads" and missing:
        raise CommandFailed(
            f"kernels cannot run in this process: the package {missing[0]} is not installed here",
            next_step=f"{how_to_install('compute')}; or leave them to `lethe compute`: lethe serve --compute none",
            exit_code=UNUSABLE,
        )
    try:
        chosen_admin_token(settings)
    except AdminTokenUnusable as error:
        raise CommandFailed(
            str(error),
            next_step="make one: openssl rand -hex 32 > FILE; LETHE_ADMIN_TOKEN_FILE=FILE",
            exit_code=UNUSABLE,
        ) from error


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise CommandFailed(
            f"cannot listen on {_bracketed(host)}:{port}: {error.strerror or error}",
            next_step="stop what listens there, or choose another: lethe serve --host 127.0.0.1 --port 0",
        ) from error


def _announce(settings: Settings, url: str) -> None:
    if settings.admin_token is not None:
        token = "the one in LETHE_ADMIN_TOKEN"
    else:
        token = str(settings.admin_token_file or settings.home / "admin.token")
    print(f"API          {url}/v1")
    print(f"dashboard    {url}/")
    print(f"docs         {url}/docs")
    print(f"admin token  {token}")
    print(f"ready {url}", flush=True)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
