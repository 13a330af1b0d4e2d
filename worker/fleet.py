"""Several clients in one process: one event loop, one pool of training threads, one model cache. Each client has its
own agent and connections, and what goes wrong with one of them leaves the others alone."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from worker.agent import Agent, Ending, Shared
from worker.backoff import Backoff
from worker.cache import ModelCache
from worker.execution import TaskRunner
from worker.ledger import LedgerUnusable
from worker.progress import ProgressBoard, Reporter
from worker.settings import Member, OptionsUnusable, WorkerOptions
from worker.shutdown import Shutdown
from worker.task_loading import TaskUnusable, load_task
from worker.transport import Transport


async def serve(
    members: Sequence[Member | OptionsUnusable],
    options: WorkerOptions,
    *,
    board: ProgressBoard | None = None,
    pool: ThreadPoolExecutor,
    shutdown: Shutdown,
    backoff: Backoff | None = None,
) -> Ending:
    """Serve all members until shutdown, or until each has ended."""
    cache = ModelCache(options.cache_dir, options.cache_bytes)
    shared = Shared(cache, options.ledger_dir, pool, shutdown, agent_version())
    with tempfile.TemporaryDirectory(prefix="lethe-worker-", ignore_cleanup_errors=True) as folder:
        scratch = Path(folder)
        endings = await asyncio.gather(
            *(
                _serve_member(member, options, shared, backoff=backoff, board=board, scratch=scratch)
                for member in members
            )
        )
    return overall(endings)


async def _serve_member(
    member: Member | OptionsUnusable,
    options: WorkerOptions,
    shared: Shared,
    *,
    backoff: Backoff | None,
    board: ProgressBoard | None,
    scratch: Path,
) -> Ending:
    label = member.label if isinstance(member, Member) else "client"
    reporter = Reporter(label, board.add_line(label) if board is not None else None)
    if isinstance(member, OptionsUnusable):
        reporter.unusable(member)
        return Ending.UNUSABLE
    load = partial(load_task, member.task, member.data, options.data_folders, member.canary)
    runner = TaskRunner(load, options.device, scratch)
    try:
        transport = Transport(
            member.coordinator, member.token, ca_file=options.ca_file, backoff=backoff, on_retry=reporter.retrying
        )
        try:
            agent = Agent(shared, transport=transport, runner=runner, reporter=reporter, canary=member.canary)
            return await agent.run(once=options.once, wait_s=options.wait_s)
        finally:
            await transport.aclose()
    except (OptionsUnusable, TaskUnusable, LedgerUnusable) as error:
        reporter.unusable(error)
        return Ending.UNUSABLE
    except Exception as error:  # one agent's crash must not end its neighbours
        reporter.crashed(error)
        return Ending.STOPPED


def overall(endings: Sequence[Ending]) -> Ending:
    """The process's ending: trouble first, then work done, then nothing to do."""
    for ending in (Ending.UNUSABLE, Ending.STOPPED, Ending.DONE):
        if ending in endings:
            return ending
    return Ending.NOTHING_TO_DO


def agent_version() -> str:
    try:
        return version("lethe")
    except PackageNotFoundError:
        return "unknown"
