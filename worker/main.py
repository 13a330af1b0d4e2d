"""Entry point of `lethe worker`: options in, exit code out (worker.agent.Ending)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import structlog

from services.methods.catalogue import LEFT_OUT
from worker.agent import HAND_BACK_WITHIN_S, Ending
from worker.fleet import serve
from worker.progress import ProgressBoard, configure_logging
from worker.settings import Member, OptionsUnusable, WorkerOptions, members_of
from worker.shutdown import Shutdown


def main(options: WorkerOptions) -> int:
    """Serve until a signal, the coordinator or `once` ends it. Takes over SIGTERM and SIGINT: main thread only.

    Raises OptionsUnusable before anything is served.
    Exit codes: 0 done, 1 stopped by the coordinator or a crash, 2 unusable options, task or data, 3 nothing to do.
    """
    if not structlog.is_configured():
        configure_logging(as_json=options.log_json)
    for one in LEFT_OUT:
        structlog.get_logger().warning("method.left-out", method=one.name, package=str(one.package), reason=one.reason)
    members = members_of(options)
    if options.ca_file is not None and not options.ca_file.is_file():
        raise OptionsUnusable(f"no CA file {options.ca_file}")
    _warn_of_plain_http(members)
    live = options.display == "live" or (options.display == "auto" and sys.stderr.isatty())
    pool = ThreadPoolExecutor(max_workers=options.jobs, thread_name_prefix="training")
    with ProgressBoard() if live else contextlib.nullcontext() as board:
        ending = asyncio.run(_serve(members, options, board, pool))
    return _leave(pool, ending)


async def _serve(
    members: Sequence[Member | OptionsUnusable],
    options: WorkerOptions,
    board: ProgressBoard | None,
    pool: ThreadPoolExecutor,
) -> Ending:
    shutdown = Shutdown(options.grace_s)
    shutdown.listen()
    return await serve(members, options, board=board, pool=pool, shutdown=shutdown)


def _leave(pool: ThreadPoolExecutor, ending: Ending) -> int:
    """Python waits for its threads at exit, and a client's own code may never return: then leave without them."""
    pool.shutdown(wait=False, cancel_futures=True)
    for thread in threading.enumerate():
        if thread.name.startswith("training"):
            thread.join(HAND_BACK_WITHIN_S)
            if thread.is_alive():
                structlog.get_logger().warning("worker.left_thread", thread=thread.name)
                sys.stderr.flush()
                os._exit(ending)
    return int(ending)


def _warn_of_plain_http(members: Sequence[Member | OptionsUnusable]) -> None:
    for address in {member.coordinator for member in members if isinstance(member, Member)}:
        parts = urlsplit(address)
        if parts.scheme == "http" and parts.hostname not in ("127.0.0.1", "localhost", "::1"):
            structlog.get_logger().warning(
                "transport.unencrypted",
                coordinator=address,
                detail="credentials and updates travel in the clear: use https",
            )
