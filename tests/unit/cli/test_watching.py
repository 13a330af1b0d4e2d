from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from lethe.watching import RunView, show_live, summary, watch


def event(seq: int, type_: str, second: float = 0.0, **data: Any) -> dict[str, Any]:
    at = f"2026-01-01T00:00:{second:06.3f}+00:00"
    return {"seq": seq, "type": type_, "at": at, "cohort_id": "c", "run_id": "r", "data": data}


STORY = [
    event(1, "RunCreated", name="digits"),
    event(2, "CheckpointPublished", 0, round=0, metrics={"validation_accuracy": 0.1}),
    event(3, "RoundOpened", 0, round=1, kind="train", num_selected=2),
    event(4, "UpdateAccepted", 1, round=1),
    event(5, "UpdateAccepted", 2, round=1),
    event(6, "RoundClosed", 2, round=1, kind="train", num_received=2, num_failed=0),
    event(7, "CheckpointPublished", 2, round=1, metrics={"validation_accuracy": 0.5, "validation_loss": 1.2}),
    event(8, "RoundOpened", 2, round=2, kind="train", num_selected=2),
]
ENDED = event(9, "RunEnded", 4, status="completed", reason="all 4 rounds done")


def view_after(*events: dict[str, Any]) -> RunView:
    view = RunView("digits", 4)
    for each in events:
        view.take(each)
    return view


def shown(view: RunView) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(show_live(view, 120))
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def plain(events: list[dict[str, Any] | None]) -> str:
    console = Console(file=io.StringIO(), width=120)
    watch(RunView("digits", 4), events, console)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_a_round_shows_what_arrived_and_its_accuracy() -> None:
    text = shown(view_after(*STORY))
    assert "2/2" in text and "0.5000" in text and "published" in text
    assert "0/2" in text and "training" in text


def test_the_time_left_follows_the_pace_of_the_last_rounds() -> None:
    view = view_after(*STORY)
    assert view.time_left is not None and view.time_left.total_seconds() == 6  # 2 s a round, 3 rounds to go
    assert "about 6 s left" in summary(view)


def test_a_paused_run_says_why_and_promises_no_end() -> None:
    view = view_after(*STORY, event(9, "RunPaused", 3, reason="the blob store is full"))
    assert view.time_left is None
    assert "paused" in summary(view) and "the blob store is full" in summary(view)
    view.take(event(10, "RunResumed", 3))
    assert view.status == "running"


def test_a_lost_connection_shows_until_the_next_event() -> None:
    text = plain([*STORY, None, None, ENDED])
    assert text.count("the coordinator is away, reconnecting") == 1
    assert text.rstrip().endswith("digits: completed, round 1 of 4; all 4 rounds done")


def test_without_a_terminal_each_round_is_one_line() -> None:
    assert "round 1/4  2/2 updates  accuracy 0.5000  2.00 s\n" in plain([*STORY, ENDED])


def test_watching_ends_with_the_run() -> None:
    assert "never" not in plain([*STORY, ENDED, event(10, "RunPaused", reason="never")])


@pytest.mark.parametrize("width", [100, 80])
def test_a_live_table_breaks_no_word_and_shows_no_column_that_is_empty(width: int) -> None:
    judged = event(6, "RoundOpened", 3, round=2, kind="evaluate", num_selected=2)
    console = Console(file=io.StringIO(), width=width)
    console.print(show_live(view_after(*STORY, judged), width))
    heading, *lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert "accuracy" in heading and "cohort" not in heading and "note" not in heading
    assert any(line.split()[-1] == "published" for line in lines) and any("evaluating" in line for line in lines)
    assert max(map(len, (heading, *lines))) <= width
