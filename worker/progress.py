"""What an agent shows of its work: one live line per agent on a terminal, structured log lines elsewhere.

Log events are `noun.verb` with client, run, cohort, round, epoch and task bound. Nothing here
reaches the network: it is the data holder's own screen and log.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

import structlog
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from services.wire.v1.work import Session, TaskGrant
from worker.answers import CoordinatorRefused

REMIND_EVERY_S: Final = 30.0
"""A coordinator that stays away is mentioned this often, not at every attempt."""


@dataclass
class ProgressLine:
    """One agent's line on the board. `fraction` is asked at every refresh; None hides the bar."""

    client: str
    doing: str = "starting"
    last: str = ""
    fraction: Callable[[], float] | None = None


class ProgressBoard:
    """The live lines of all agents in this process."""

    def __init__(self, console: Console | None = None) -> None:
        self._lines: list[ProgressLine] = []
        self._live = Live(
            console=console if console is not None else Console(stderr=True),
            get_renderable=self._render,
            refresh_per_second=5,
        )

    def add_line(self, client: str) -> ProgressLine:
        self._lines.append(ProgressLine(client))
        return self._lines[-1]

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def _render(self) -> Table:
        table = Table.grid(padding=(0, 2))
        for line in self._lines:
            bar = "" if line.fraction is None else ProgressBar(total=1.0, completed=line.fraction(), width=20)
            table.add_row(f"[bold]{line.client}[/bold]", line.doing, bar, f"[dim]{line.last}[/dim]")
        return table


class Reporter:
    """One agent's voice. With a line on a board, plain progress shows there and only trouble is logged."""

    def __init__(self, client: str, line: ProgressLine | None = None) -> None:
        self._log: structlog.stdlib.BoundLogger = structlog.get_logger().bind(client=client)
        self._line = line
        self._reminded_at = -REMIND_EVERY_S

    def session_opened(self, session: Session) -> None:
        self._log = self._log.bind(client=session.client_name)
        if self._line is not None:
            self._line.client = session.client_name
        self._tell("session.opened", "waiting for work", federation=str(session.federation_id))

    def claimed(self, grant: TaskGrant, fraction: Callable[[], float]) -> None:
        """`fraction` says how much of the work is done, whenever asked."""
        self._tell("task.claimed", f"{grant.kind} {_place(grant)}", fraction=fraction, **_bound(grant))

    def submitted(self, grant: TaskGrant, num_samples: int, metrics: dict[str, float]) -> None:
        figures = " ".join(f"{name}={value:.4g}" for name, value in metrics.items())
        last = f"{_place(grant)}: {figures}"
        self._tell(
            "task.submitted", "waiting for work", last=last, num_samples=num_samples, metrics=metrics, **_bound(grant)
        )

    def dropped(self, grant: TaskGrant, why: CoordinatorRefused) -> None:
        last = f"{_place(grant)}: dropped, {why.code}"
        self._tell("task.dropped", "waiting for work", last=last, code=why.code, detail=why.detail, **_bound(grant))

    def handed_back(self, grant: TaskGrant) -> None:
        self._tell("task.handed_back", "stopping", last=f"{_place(grant)}: handed back", **_bound(grant))

    def failed(self, grant: TaskGrant, error: Exception, *, retryable: bool) -> None:
        """The full message and traceback appear here, in the data holder's own log, and nowhere else."""
        self._show("waiting for work", last=f"{_place(grant)}: failed, {type(error).__name__}")
        self._log.error("task.failed", retryable=retryable, exc_info=error, **_bound(grant))

    def retrying(self, why: CoordinatorRefused, delay_s: float) -> None:
        if self._line is not None:
            self._line.last = f"{why.code}: trying again"
        now = time.monotonic()
        if now - self._reminded_at >= REMIND_EVERY_S:
            self._reminded_at = now
            self._log.warning("coordinator.retried", code=why.code, detail=why.detail, delay_s=round(delay_s, 3))

    def cannot_leave_out(self, error: Exception) -> None:
        self._show("needs attention", last=str(error))
        self._log.error("samples.cannot_be_left_out", detail=str(error), exc_info=error.__cause__)

    def nothing_to_do(self) -> None:
        self._tell("agent.idle", "nothing to do")

    def stopped(self, why: CoordinatorRefused) -> None:
        self._show("stopped", last=str(why))
        self._log.error("agent.stopped", code=why.code, detail=why.detail)

    def erased(self, why: CoordinatorRefused, *, is_cache_empty: bool) -> None:
        cache = "is empty now" if is_cache_empty else "will be empty when the other clients here have done their tasks"
        self._show("erased", last=why.detail)
        self._log.error("agent.erased", detail=why.detail, cache=f"the cache of models {cache}")

    def unusable(self, error: Exception) -> None:
        self._show("cannot start", last=str(error))
        self._log.error("agent.unusable", detail=str(error))

    def crashed(self, error: Exception) -> None:
        self._show("crashed", last=type(error).__name__)
        self._log.error("agent.crashed", exc_info=error)

    def _tell(
        self, event: str, doing: str, *, last: str = "", fraction: Callable[[], float] | None = None, **fields: Any
    ) -> None:
        if self._line is None:
            self._log.info(event, **fields)
        self._show(doing, last, fraction)

    def _show(self, doing: str, last: str = "", fraction: Callable[[], float] | None = None) -> None:
        if self._line is not None:
            self._line.doing, self._line.fraction = doing, fraction
            self._line.last = last or self._line.last


def configure_logging(*, as_json: bool) -> None:
    """Lines go to whatever sys.stderr is at that moment, so that a live board can keep them above itself. Tracebacks
    are plain: the richer ones print local variables, and those hold data and tokens."""
    console = structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *([structlog.processors.format_exc_info, structlog.processors.JSONRenderer()] if as_json else [console]),
        ],
        logger_factory=lambda *args: structlog.PrintLogger(_CurrentStderr()),  # type: ignore[arg-type]
    )


class _CurrentStderr:
    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def _bound(grant: TaskGrant) -> dict[str, Any]:
    return {
        "task": str(grant.task_id),
        "kind": grant.kind,
        "run": grant.run_name,
        "cohort": grant.cohort,
        "round": grant.round,
        "epoch": grant.epoch,
    }


def _place(grant: TaskGrant) -> str:
    return f"{grant.run_name}/{grant.cohort} round {grant.round}"
