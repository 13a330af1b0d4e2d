"""Running a real worker inside a test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from worker.agent import Ending
from worker.backoff import Backoff
from worker.fleet import serve
from worker.settings import WorkerOptions, members_of
from worker.shutdown import Shutdown


@contextlib.asynccontextmanager
async def served(
    url: str, token: str, data: str, home: Path, ending: Ending = Ending.DONE, **changes: Any
) -> AsyncIterator[WorkerOptions]:
    """A worker of the token's client, from a start to a shutdown, which ends it like this."""
    options = WorkerOptions(
        coordinator=url,
        token=token,
        data=data,
        cache_dir=home / "cache",
        ledger_dir=home / "ledgers",
        display="log",
        **changes,
    )
    shutdown = Shutdown(grace_s=5.0)
    with ThreadPoolExecutor(max_workers=1) as pool:
        backoff = Backoff(first_s=0.01)
        serving = asyncio.create_task(
            serve(members_of(options), options, pool=pool, shutdown=shutdown, backoff=backoff)
        )
        try:
            yield options
        finally:
            shutdown.request()
            assert await serving is ending


async def serve_until(options: WorkerOptions, condition: Callable[[], bool], within_s: float = 60.0) -> Ending:
    """Run the worker of `options` until the condition holds, then ask it to shut down. A worker that ends by itself
    ends the wait too."""
    shutdown = Shutdown(grace_s=5.0)
    with ThreadPoolExecutor(max_workers=options.jobs) as pool:
        backoff = Backoff(first_s=0.01)
        serving = asyncio.create_task(
            serve(members_of(options), options, pool=pool, shutdown=shutdown, backoff=backoff)
        )
        async with asyncio.timeout(within_s):
            while not (condition() or serving.done()):  # noqa: ASYNC110 - the condition is any change outside the loop
                await asyncio.sleep(0.01)
        shutdown.request()
        return await serving
