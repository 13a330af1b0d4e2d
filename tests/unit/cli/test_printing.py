"""What people and pipes get to see of a record."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from lethe import printing
from lethe.printing import print_record, print_records


def test_a_pipe_gets_long_fields_whole_and_no_padding(capsys: pytest.CaptureFixture[str]) -> None:
    spec = {"name": "x" * 300}
    print_record({"id": "7", "spec": spec, "reason": None}, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(maxsplit=1)[0] for line in lines] == ["id", "spec", "reason"]
    assert "x" * 300 in lines[1]
    assert lines == [line.rstrip() for line in lines]


def test_no_end_of_a_digest_is_left_out_of_a_record_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, digest = io.StringIO(), f"sha256:{'0123456789abcdef' * 4}"
    monkeypatch.setattr(printing, "console", Console(file=screen, width=60, force_terminal=True, color_system=None))
    print_record({"key_id": digest, "explanation": f"The key {digest} was replaced."}, as_json=False)
    assert "".join(screen.getvalue().split()).count(digest) == 2


RUNS: list[dict[str, Any]] = [
    {
        "name": "digits-of-the-hospitals",
        "status": "running",
        "round": "12/100",
        "accuracy": 0.9312,
        "created": "2026-11-17 15:00:00",
        "reason": None,
        "id": "0199d3a2-7a53-7cc0-b7a1-0d7b7e0f3c55",
    },
    {
        "name": "faces",
        "status": "paused",
        "round": "3/5",
        "accuracy": None,
        "created": "2026-11-17 15:00:01",
        "reason": "client hospital-a failed three times in a row with ValueError",
        "id": "0199d3a2-7a53-7cc0-b7a1-0d7b7e0f3c56",
    },
]
COLUMNS: dict[str, printing.Column] = {key: key for key in RUNS[0]}


def on_a_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    screen = io.StringIO()
    terminal = Console(file=screen, width=width, force_terminal=True, color_system=None)
    monkeypatch.setattr(printing, "console", terminal)
    print_records(RUNS, COLUMNS, as_json=False)
    return screen.getvalue().splitlines()


@pytest.mark.parametrize("width", [160, 100, 80, 60])
def test_no_word_of_a_table_is_broken_whatever_the_terminals_width(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = on_a_terminal(width, monkeypatch)
    assert max(map(len, lines)) <= width
    shown = {word for line in lines for word in line.split()}
    assert {word for run in RUNS for value in run.values() if value for word in str(value).split()} <= shown


def test_ids_stand_below_their_rows_where_they_do_not_fit_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    assert RUNS[0]["id"] in on_a_terminal(160, monkeypatch)[2]
    narrow = on_a_terminal(100, monkeypatch)
    assert narrow[2].startswith(RUNS[0]["name"]) and narrow[3] == f"  id {RUNS[0]['id']}"


def test_what_people_know_a_row_by_stays_in_its_first_column(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    terminal = Console(file=screen, width=80, force_terminal=True, color_system=None)
    monkeypatch.setattr(printing, "console", terminal)
    methods = [
        {"method": "fedrecovery", "guarantee": "approximate", "seconds": 1.5, **{str(i): "x" * 9 for i in range(6)}}
    ]
    print_records(methods, {key: key for key in methods[0]}, as_json=False)
    heading, _, row, *below = screen.getvalue().splitlines()
    assert heading.startswith("method ") and row.startswith("fedrecovery ") and "  guarantee approximate" in below


def test_a_pipe_gets_one_line_a_record(capsys: pytest.CaptureFixture[str]) -> None:
    print_records(RUNS, COLUMNS, as_json=False)
    heading, _, *rows = capsys.readouterr().out.splitlines()
    assert heading.split() == list(COLUMNS)
    assert [row.split()[-1] for row in rows] == [run["id"] for run in RUNS]
