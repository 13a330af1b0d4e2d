"""What the coordinator's processes (`serve`, `compute`, `db`) share: settings, logging, the check of the schema."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from lethe.database_faults import database_asked
from lethe.failures import UNUSABLE, CommandFailed, require

if TYPE_CHECKING:
    from coordinator.runtime.coordinator import Coordinator
    from coordinator.runtime.settings import Settings

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_KEPT_BYTES: Final = 8 << 20
_LARGEST_KEPT_BYTES: Final = 4 << 20
SECRETS: Final = {"database_url", "redis_url", "admin_token"}
"""Settings whose values are never shown."""


class Blobs(StrEnum):
    file = "file"
    postgres = "postgres"


class Compute(StrEnum):
    threads = "threads"
    none = "none"


# Their variables are read by `settings_from`, so that a wrong one is told as a setting, not as a misused option.
Home = Annotated[
    Path | None,
    typer.Option(help="Directory of the SQLite file, blobs and tokens; else LETHE_HOME or ./lethe-data."),
]
DatabaseUrl = Annotated[
    str | None, typer.Option(help="postgresql://…; else LETHE_DATABASE_URL or a SQLite file in the home.")
]
RedisUrl = Annotated[
    str | None, typer.Option(help="redis://…; else LETHE_REDIS_URL or an in-process bus (one replica).")
]
BlobStore = Annotated[
    Blobs | None, typer.Option(help="Where models and updates are stored; else LETHE_BLOBS or files.")
]


def settings_from(**options: Any) -> Settings:
    """Options given on the command line over LETHE_… variables over defaults."""
    require("coordinator", "sqlalchemy", "asyncpg")
    from pydantic import ValidationError

    from coordinator.runtime.settings import Settings

    given = {key: value for key, value in options.items() if value is not None}
    try:
        return Settings.read(os.environ, **given)
    except ValidationError as error:
        faults = "; ".join(_fault(fault, given) for fault in error.errors())
        raise CommandFailed(
            f"unusable settings: {faults}",
            next_step="correct it; docs/operations.md lists the settings",
            exit_code=UNUSABLE,
        ) from error


def _fault(fault: Any, given: Mapping[str, Any]) -> str:
    """What is wrong with which option or variable; what was found there, unless it may be a secret."""
    from coordinator.runtime.settings import variable_of

    said = str(fault["msg"]).removeprefix("Value error, ")
    if not fault["loc"]:
        return said
    field = str(fault["loc"][0])
    name = f"--{field.replace('_', '-')}" if field in given else variable_of(field)
    found = "" if field in SECRETS else f"found {str(fault['input'])!r}; "
    return f"{name}: {found}{said}"


def open_coordinator(settings: Settings) -> Coordinator:
    """A coordinator that has its directories and knows its database's address; nothing runs yet."""
    from coordinator.runtime.coordinator import Coordinator
    from coordinator.store.address import AddressUnusable

    directories = {"LETHE_HOME": settings.home, "LETHE_EVIDENCE_DIR": settings.evidence_path}
    if settings.blobs == "file":
        directories["LETHE_BLOB_DIR"] = settings.blob_path
    for variable, directory in directories.items():
        _refuse_unusable(directory, variable)
    try:
        return Coordinator(settings)
    except AddressUnusable as error:
        raise CommandFailed(
            f"the database's address cannot be used: {error}",
            next_step="correct --database-url or LETHE_DATABASE_URL",
            exit_code=UNUSABLE,
        ) from error
    except ValueError as error:  # of the library that reads the address of Redis
        raise CommandFailed(
            f"the settings cannot be used: {error}",
            next_step="correct --redis-url or LETHE_REDIS_URL",
            exit_code=UNUSABLE,
        ) from error


def _refuse_unusable(directory: Path, variable: str) -> None:
    """The directory, or what it is to be made in, must be a directory that this user may write to."""
    nearest = next(path for path in (directory.absolute(), *directory.absolute().parents) if path.exists())
    if not nearest.is_dir():
        fault = f"{nearest} is not a directory"
    elif not os.access(nearest, os.W_OK | os.X_OK):
        fault = f"{nearest} cannot be written to by this user"
    else:
        return
    raise CommandFailed(
        f"{directory} cannot be used: {fault}",
        next_step=f"choose another with {variable}, or mend it",
        exit_code=UNUSABLE,
    )


def configure_logging(*, as_json: bool) -> None:
    """Structured lines on standard error; standard output is for what the command itself says."""
    import structlog

    from services.core.tokens import hide_tokens

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
            lambda logger, name, line: hide_tokens(str(line)),
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

    with database_asked():
        await schema.upgrade(coordinator.database)
        fault = await schema.fault(coordinator.database)
    if fault is not None:
        raise CommandFailed(fault.reason, next_step=fault.next_step)


async def refuse_old_schema(coordinator: Coordinator) -> None:
    """Upgrading a shared database is an operator's decision. While a server is away, wait: it may be starting, too."""
    import structlog

    from coordinator.store import schema
    from coordinator.store.database import Unavailable

    while True:
        try:
            with database_asked(may_be_away=not coordinator.database.is_sqlite):
                fault = await schema.fault(coordinator.database)
        except Unavailable as error:
            structlog.get_logger().warning("database.awaited", error=str(error)[:200])
            await asyncio.sleep(1.0)
            continue
        if fault is not None:
            raise CommandFailed(fault.reason, next_step=fault.next_step)
        return
