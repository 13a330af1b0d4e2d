"""Following a run by its events: a view folded from them, shown as a live table on a terminal and as lines elsewhere.

A lost connection changes nothing: the client reconnects where it stopped, across restarts of the coordinator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from lethe.columns import lines_of
from lethe.printing import cell
from services.core.model_figures import accuracy_of, loss_of

_PHASES: Final = {"evaluate": "evaluating", "profile": "profiling"}
ROUNDS_SHOWN: Final = 15
PACE_ROUNDS: Final = 5
"""How many of the last rounds the time left is judged by."""


@dataclass
class RoundLine:
    number: int
    num_selected: int = 0
    num_received: int = 0
    num_failed: int = 0
    phase: str = "open"
    accuracy: float | None = None
    loss: float | None = None
    seconds: float | None = None
    note: str = ""
    cohort: str = ""


@dataclass
class RunView:
    """What the events so far say about a run."""

    name: str
    rounds_planned: int
    status: str = "running"
    reason: str = ""
    is_connected: bool = True
    rounds: dict[tuple[str | None, int], RoundLine] = field(default_factory=dict)
    published_at: list[datetime] = field(default_factory=list)
    newest: int = 0
    cohorts: dict[str | None, str] = field(default_factory=dict)
    """Names by id."""

    @property
    def has_ended(self) -> bool:
        return self.status in ("completed", "failed", "cancelled")

    @property
    def time_left(self) -> timedelta | None:
        """The time left at the pace of the last rounds; None until there is a pace, or when the run is not running."""
        recent = self.published_at[-PACE_ROUNDS - 1 :]
        if len(recent) < 2 or self.status != "running":
            return None
        return (recent[-1] - recent[0]) / (len(recent) - 1) * max(0, self.rounds_planned - self.newest)

    def take(self, event: dict[str, Any]) -> RoundLine | None:
        """Fold one event in. Returns the round that it published, if any."""
        data: dict[str, Any] = event["data"]
        match event["type"]:
            case "CohortFormed":
                self.cohorts[event.get("cohort_id")] = str(data.get("cohort"))
            case "RunPaused":
                self.status, self.reason = "paused", str(data.get("reason") or "")
            case "RunResumed":
                self.status, self.reason = "running", ""
            case "RunEnded":
                self.status, self.reason = str(data.get("status")), str(data.get("reason") or "")
            case "RoundOpened":
                line = self._line(event)
                line.num_selected = data.get("num_selected", 0)
                line.num_received = line.num_failed = 0
                line.phase = _PHASES.get(str(data.get("kind")), "training")
            case "UpdateAccepted":
                self._line(event).num_received += 1
            case "TaskFailed":
                self._line(event).num_failed += 1
            case "QuorumAwaited":
                self._line(event).phase = "awaiting quorum"
            case "RoundAbandoned":
                self._line(event).phase = "abandoned"
            case "RoundClosed":
                line = self._line(event)
                line.num_received, line.num_failed = data["num_received"], data["num_failed"]
                line.phase = "judging" if data.get("kind") == "evaluate" else "aggregating"
            case "CheckpointPublished":
                return self._publish(event)
        return None

    def _publish(self, event: dict[str, Any]) -> RoundLine:
        line, metrics = self._line(event), event["data"].get("metrics", {})
        line.phase = "published"
        line.accuracy, line.loss = accuracy_of(metrics), loss_of(metrics)
        at = datetime.fromisoformat(event["at"])
        if self.published_at:
            line.seconds = (at - self.published_at[-1]).total_seconds()
        self.published_at.append(at)
        self.newest = max(self.newest, line.number)
        return line

    def _line(self, event: dict[str, Any]) -> RoundLine:
        number = int(event["data"].get("round", 0))
        cohort_id = event.get("cohort_id")
        cohort = self.cohorts.get(cohort_id, "") if len(self.cohorts) > 1 else ""
        return self.rounds.setdefault((cohort_id, number), RoundLine(number, cohort=cohort))


def show_live(view: RunView, width: int) -> Group:
    """The newest rounds as a table of the columns that have something in them, with one line on the whole run below."""
    records: list[dict[str, Any]] = [
        {
            "cohort": line.cohort or None,
            "round": line.number,
            "received": f"{line.num_received}/{line.num_selected}" if line.num_selected else None,
            "failed": line.num_failed or None,
            "accuracy": None if line.accuracy is None else f"{line.accuracy:.4f}",
            "loss": line.loss,
            "seconds": None if line.seconds is None else f"{line.seconds:.2f}",
            "phase": line.phase,
            "note": line.note or None,
        }
        for line in list(view.rounds.values())[-ROUNDS_SHOWN:]
    ]
    headings = [name for name in records[0] if any(one[name] is not None for one in records)] if records else []
    rows = [[cell(record[name]) for name in headings] for record in records]
    return Group(*lines_of(headings, rows, width), Text(), Text(summary(view), style="bold"))


def summary(view: RunView) -> str:
    parts = [f"{view.name}: {view.status}, round {view.newest} of {view.rounds_planned}"]
    if view.time_left is not None:
        parts.append(f"about {max(0, round(view.time_left.total_seconds()))} s left")
    if view.reason:
        parts.append(view.reason)
    if not view.is_connected:
        parts.append("the coordinator is away, reconnecting")
    return "; ".join(parts)


def round_in_one_line(view: RunView, line: RoundLine) -> str:
    accuracy = "" if line.accuracy is None else f"  accuracy {line.accuracy:.4f}"
    made_of = f"  {line.num_received}/{line.num_selected} updates" if line.num_selected else ""
    made_of = made_of or ("  initial model" if line.number == 0 else "  of other models")
    seconds = "" if line.seconds is None else f"  {line.seconds:.2f} s"
    cohort = f"{line.cohort}: " if line.cohort else ""
    return f"{cohort}round {line.number}/{view.rounds_planned}{made_of}{accuracy}{seconds}"


def watch(
    view: RunView,
    events: Iterable[dict[str, Any] | None],
    console: Console,
    *,
    on_round: Callable[[RoundLine], None] = lambda line: None,
    say: Callable[[str], None] | None = None,
) -> None:
    """Show a run until it ends. `on_round` hears of each published round; None among the events: connection lost."""
    tell = say or (lambda text: console.print(text, highlight=False, markup=False))
    with (
        Live(console=console, get_renderable=lambda: show_live(view, console.width), refresh_per_second=5)
        if console.is_terminal
        else nullcontext()
    ):
        for event in events:
            if event is None:
                if view.is_connected and not console.is_terminal:
                    tell("the coordinator is away, reconnecting")
                view.is_connected = False
                continue
            view.is_connected = True
            line = view.take(event)
            if line is not None:
                if not console.is_terminal:
                    tell(round_in_one_line(view, line))
                on_round(line)
            elif event["type"] in ("RunPaused", "RunResumed") and not console.is_terminal:
                tell(summary(view))
            if view.has_ended:
                break
    if not console.is_terminal:
        tell(summary(view))
