"""`lethe compute`: a process that aggregates and judges models for coordinators on the same database."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

from lethe.failures import CommandFailed, require
from lethe.process import (
    BlobStore,
    DatabaseUrl,
    Home,
    RedisUrl,
    open_coordinator,
    prepare_process,
    refuse_old_schema,
    settings_from,
)
from lethe.target import examples

if TYPE_CHECKING:
    from coordinator.runtime.settings import Settings

HELP = examples("LETHE_DATABASE_URL=postgresql+asyncpg://lethe@db/lethe lethe compute --home /srv/lethe")


def compute(
    home: Home = None, database_url: DatabaseUrl = None, redis_url: RedisUrl = None, blobs: BlobStore = None
) -> None:
    """Run kernels (aggregation, validation) for coordinators started with `--compute none`. As many as you like.

    It shares their database, and their home or their Postgres blobs. Ends on SIGTERM; SIGKILL is safe, too.
    """
    require("compute", "torch", "ortools", "uvloop", "sqlalchemy")
    import uvloop

    settings = settings_from(home=home, database_url=database_url, redis_url=redis_url, blobs=blobs)
    prepare_process(settings)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_compute(settings))


async def _compute(settings: Settings) -> None:
    stop, lost = asyncio.Event(), list[str]()

    def give_up(problem: str) -> None:
        lost.append(problem)
        stop.set()

    coordinator = open_coordinator(settings)
    try:
        await refuse_old_schema(coordinator)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        coordinator.supervisor.when_hopeless(give_up)
        await coordinator.start_compute()
        print("ready", flush=True)
        await stop.wait()
    finally:
        await coordinator.close()
    if lost:
        raise CommandFailed(
            lost[0], next_step="see the log above, then start it again: its jobs wait, or others run them"
        )
