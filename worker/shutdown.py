"""How an agent ends: the first SIGTERM or SIGINT asks, the second exits at once."""

from __future__ import annotations

import asyncio
import os
import signal


class Shutdown:
    """`requested`: claim no more. `overdue`: the grace period is over, hand back what is not finished."""

    def __init__(self, grace_s: float) -> None:
        self.requested = asyncio.Event()
        self.overdue = asyncio.Event()
        self._grace_s = grace_s

    def request(self) -> None:
        if not self.requested.is_set():
            self.requested.set()
            asyncio.get_running_loop().call_later(self._grace_s, self.overdue.set)

    def listen(self) -> None:
        """Take over SIGTERM and SIGINT of this process; main thread only."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: int) -> None:
        if self.requested.is_set():
            os._exit(128 + number)  # not sys.exit: a training thread may never end by itself
        self.request()
