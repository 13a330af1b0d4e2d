"""What the coordinator's processes (`serve`, `compute`, `db`) share: settings, logging, the check of the schema."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from lethe.failures import UNUSABLE, CommandFailed, require

if TYPE_CHECKING:
    from coordinator.runtime.coordinator import Coordinator
    from coordinator.runtime.settings import Settings

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_KEPT_BYTES: Final = 8 << 20
_LARGEST_KEPT_BYTES: Final = 4 << 20


class Blobs(StrEnum):
    file = "file"
    postgres = "postgres"


class Compute(StrEnum):
    threads = "threads"
    none = "none"


Home = Annotated[
    Path | None,
    typer.Option(envvar="LETHE_HOME", help="Directory of the SQLite file, blobs and tokens; ./lethe-data when absent."),
]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(envvar="LETHE_DATABASE_URL", help="postgresql+asyncpg://…; a SQLite file in the home when absent."),
]
RedisUrl = Annotated[
    str | None, typer.Option(envvar="LETHE_REDIS_URL", help="redis://…; an in-process bus when absent (one replica).")
]
BlobStore = Annotated[Blobs | None, typer.Option(envvar="LETHE_BLOBS", help="Where models and updates are stored.")]


def settings_from(**options: Any) -> Settings:
    """Options given on the command line over LETHE_… variables over defaults."""
    require("coordinator", "pydantic_settings", "sqlalchemy")
    from pydantic import ValidationError

    from coordinator.runtime.settings import Settings

    given: dict[str, Any] = {key: str(value) if isinstance(value, StrEnum) else value for key, value in options.items()}
    try:
        return Settings(**{key: value for key, value in given.items() if value is not None})
    except ValidationError as error:
        faults = [
            f"{'.'.join(map(str, fault['loc']))}: found {fault['input']!r}; {fault['msg']}" for fault in error.errors()
        ]
        raise CommandFailed("unusable settings: " + "; ".join(faults), exit_code=UNUSABLE) from error


def configure_logging(*, as_json: bool) -> None:
    """Structured lines on standard error; standard output is for what the command itself says."""
    import structlog

    # Plain tracebacks: the fancy ones print local variables, and those may be tokens.
    console = structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *([structlog.processors.format_exc_info] if as_json else []),
            structlog.processors.JSONRenderer() if as_json else console,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s")


def prepare_process(settings: Settings) -> None:
    """Logging; one thread for tensor kernels unless told otherwise; as many open connections as the host allows;
    memory for bodies at hand."""
    import resource

    configure_logging(as_json=settings.log_json)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    _keep_freed_memory()


def _keep_freed_memory() -> None:
    """Left alone, the C library gives the memory of each large body back and asks for it again with the next one: a
    thousand page faults a round of small models. And it keeps apart what each thread frees, so that all of them hold
    memory for bodies. Where there are no such switches, nothing happens."""
    import ctypes

    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT_BYTES)
        mallopt(_M_ARENA_MAX, 1)


async def upgrade_schema(coordinator: Coordinator) -> None:
    """Bring the schema up to this release's; a database that this release cannot use is refused."""
    from coordinator.store import schema
    from coordinator.store.database import Unavailable

    try:
        await schema.upgrade(coordinator.database)
        fault = await schema.fault(coordinator.database)
    except Unavailable as error:
        raise CommandFailed(
            f"the database cannot be reached: {str(error)[:300]}",
            next_step="check that it runs, and --database-url or LETHE_DATABASE_URL",
        ) from error
    if fault is not None:
        raise CommandFailed(fault.reason, next_step=fault.next_step)


async def refuse_old_schema(coordinator: Coordinator) -> None:
    """Upgrading a shared database is an operator's decision. While it is away, wait: it may be starting, too."""
    import structlog

    from coordinator.store import schema
    from coordinator.store.database import Unavailable

    while True:
        try:
            fault = await schema.fault(coordinator.database)
        except Unavailable as error:
            structlog.get_logger().warning("database.awaited", error=str(error)[:200])
            await asyncio.sleep(1.0)
            continue
        if fault is not None:
            raise CommandFailed(fault.reason, next_step=fault.next_step)
        return
