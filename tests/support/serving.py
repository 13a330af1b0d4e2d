"""Running a real worker inside a test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from worker.agent import Ending
from worker.backoff import Backoff
from worker.fleet import serve
from worker.settings import WorkerOptions, members_of
from worker.shutdown import Shutdown


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
