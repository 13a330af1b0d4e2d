from __future__ import annotations

import io
import json

import pytest
import structlog
from rich.console import Console

from tests.support.scripted_coordinator import ScriptedCoordinator
from worker.answers import TryLater
from worker.progress import ProgressBoard, Reporter, configure_logging

GRANT = ScriptedCoordinator("alice").grant(4, b"")


def test_log_lines_carry_the_whereabouts_of_the_task(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(as_json=True)
    Reporter("alice").submitted(GRANT, 10, {"loss": 0.5})
    structlog.reset_defaults()
    line = json.loads(capsys.readouterr().err)
    assert line["event"] == "task.submitted"
    assert {"client", "task", "run", "cohort", "round", "epoch"} <= line.keys()


def test_a_board_shows_one_line_for_each_agent() -> None:
    text = io.StringIO()
    with ProgressBoard(Console(file=text, force_terminal=True, width=160)) as board:
        for client in ("alice", "bob"):
            Reporter(client, board.add_line(client)).claimed(GRANT, lambda: 0.5)
    assert "alice" in text.getvalue()
    assert "bob" in text.getvalue()
    assert "train a-run/all round 4" in text.getvalue()


def test_a_coordinator_that_stays_away_is_not_mentioned_at_every_attempt(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(as_json=True)
    reporter = Reporter("alice")
    for _ in range(10):
        reporter.retrying(TryLater("unreachable", "nobody there"), 1.0)
    structlog.reset_defaults()
    assert capsys.readouterr().err.count("coordinator.retried") == 1
