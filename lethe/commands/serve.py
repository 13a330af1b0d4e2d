"""`lethe serve`: the coordinator's HTTP process."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
from typing import TYPE_CHECKING, Annotated

import typer

from lethe.failures import CommandFailed, require
from lethe.process import (
    BlobStore,
    Compute,
    DatabaseUrl,
    Home,
    RedisUrl,
    prepare_process,
    refuse_old_schema,
    settings_from,
    upgrade_schema,
)
from lethe.target import examples

if TYPE_CHECKING:
    from coordinator.runtime.settings import Settings

HELP = examples(
    "lethe serve",
    "lethe serve --home /srv/lethe --host 0.0.0.0",
    "LETHE_DATABASE_URL=postgresql+asyncpg://lethe@db/lethe LETHE_REDIS_URL=redis://cache lethe serve --compute none",
)


def serve(
    home: Home = None,
    host: Annotated[
        str | None, typer.Option(envvar="LETHE_HOST", help="Address to listen on; 127.0.0.1 when absent.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(envvar="LETHE_PORT", help="Port to listen on; 8440 when absent; 0: any free one.")
    ] = None,
    database_url: DatabaseUrl = None,
    redis_url: RedisUrl = None,
    blobs: BlobStore = None,
    compute: Annotated[
        Compute | None,
        typer.Option(envvar="LETHE_COMPUTE", help="threads: aggregate here; none: leave it to `lethe compute`."),
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
    listener = _listen(settings.host, settings.port)  # from now on clients wait instead of being turned away
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # uvicorn raises the signal again when it is done: end with code 0
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, listener))


async def _serve(settings: Settings, listener: socket.socket) -> None:
    from coordinator.api.app import create_app
    from coordinator.api.server import Server
    from coordinator.runtime.coordinator import Coordinator

    coordinator = Coordinator(settings)
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

    server = Announced(create_app(coordinator), settings, lifespan="on")
    await server.serve(sockets=[listener])
    if not server.started:
        raise CommandFailed("the coordinator could not start; the log above says why")


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise CommandFailed(
            f"cannot listen on {_bracketed(host)}:{port}: {error.strerror or error}",
            next_step="stop what listens there, or choose another: lethe serve --port 0",
        ) from error


def _announce(settings: Settings, url: str) -> None:
    if settings.admin_token is not None:
        token = "the one in LETHE_ADMIN_TOKEN"
    else:
        token = str(settings.admin_token_file or settings.home / "admin.token")
    print(f"API          {url}/v1")
    print(f"docs         {url}/docs")
    print(f"admin token  {token}")
    print(f"ready {url}", flush=True)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
