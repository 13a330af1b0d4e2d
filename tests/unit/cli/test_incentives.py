"""`lethe incentives`: what a game comes to, from a file or a coordinator's figures, and what clients earned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from lethe.client.views import Period
from lethe.incentive_preview import BARS
from lethe.periods import comes_out_again
from tests.support import samples
from tests.unit.cli.conftest import Server

FEDERATION = f"/v1/federations/{samples.federation()['id']}"
FILE = """
incentives: {prices: {megabyte: 15.0}, reward: per_client}
jobs: [{name: digits, reward: 120}, {name: forget-ada}]
clients:
  - {name: a, samples: 80, bytes: 1000000}
  - {name: b, samples: 100, bytes: 1000000}
  - {name: c, samples: 120, bytes: 1000000, jobs: [digits]}
"""
JOBS = [str(UUID(int=1)), str(UUID(int=2))]
PERIOD: dict[str, Any] = {
    "number": 3,
    "strategy": "greedy",
    "begun_at": "2026-01-01T00:00:00Z",
    "incentives": {},
    "jobs": [{"id": JOBS[0], "name": "run one", "pool": 10.0}, {"id": JOBS[1], "name": "run two", "pool": 20.0}],
    "clients": [
        {"client": name, "jobs": JOBS, "samples": 10.0, "seconds": 1.0, "bytes": 0.0, "stored_bytes": 0.0}
        for name in ("a", "b")
    ],
    "serves": {"a": JOBS[1], "b": JOBS[1]},
    "populations": [{"clients": ["a", "b"], "shares": [0.0, 1.0], "utilities": [0.0, 20.0]}],
    "total_utility": 20.0,
    "num_periods": 0,
    "is_settled": True,
}


@pytest.fixture
def server(server: Server) -> Server:
    server.answers["GET /v1/federations"] = [(200, {"items": [samples.federation()]})]
    return server


def test_a_preview_of_a_file_shows_shares_utilities_and_equilibrium(server: Server, lethe: Any, tmp_path: Path) -> None:
    file, plot = tmp_path / "game.yaml", tmp_path / "shares.svg"
    file.write_text(FILE)
    code, out, err = lethe("incentives", "preview", str(file), "--plot", str(plot))
    assert code == 0 and not server.seen
    assert "total utility" in out and "forget-ada: share" in out
    assert "digits" in err and "periods" in err and any(bar in err for bar in BARS)
    assert plot.read_text().startswith("<svg") and plot.read_text().count("<polyline") == 2

    _, out, _ = lethe("incentives", "preview", str(file), "--json")
    first, *_ = map(json.loads, out.splitlines())
    assert first["period"] == 0 and first["digits"] == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("jobs: []\nclients: []", "no jobs"),
        ("jobs: [{name: a, reward: -1}]\nclients: []", "reward"),
        ("clients: []", "jobs"),
        ("jobs: [{name: a}]\nclients: [{name: x, jobs: [b]}]", "no job b"),
        ("jobs: [", "cannot read"),
    ],
)
def test_a_file_that_is_no_game_is_refused(lethe: Any, tmp_path: Path, text: str, fault: str) -> None:
    file = tmp_path / "game.yaml"
    file.write_text(text)
    code, _, err = lethe("incentives", "preview", str(file))
    assert code != 0 and fault in err
    assert "Traceback" not in err


def test_a_preview_of_a_federation_takes_its_own_figures(server: Server, lethe: Any) -> None:
    server.answers[f"GET {FEDERATION}/periods/next"] = [(200, PERIOD)]
    code, _, err = lethe("incentives", "preview")
    assert code == 0 and "run two: 2 clients (a, b)" in err


def test_an_allocation_is_set_and_taken_back(server: Server, lethe: Any) -> None:
    server.answers[f"PATCH {FEDERATION}"] = [(200, samples.federation(allocation="game"))]
    assert lethe("incentives", "set", "game")[0] == 0
    assert json.loads(server.seen[-1][2]) == {"allocation": "game"}
    assert lethe("incentives", "set", "none")[0] == 0
    assert json.loads(server.seen[-1][2]) == {"allocation": None}


def test_the_ledger_is_summed_by_client(server: Server, lethe: Any) -> None:
    entry = samples.ledger_entry(kind="reward", amounts={"share": 40.0, "fixed": 2.0})
    cost = samples.ledger_entry(kind="cost", amounts={"computation": 1.0, "communication": 3.0})
    answer = (200, {"items": [entry, cost], "next_cursor": None})
    server.answers[f"GET {FEDERATION}/ledger"] = server.answers["GET /v1/ledger"] = [answer]
    for arguments in ((), ("--own",)):
        code, out, _ = lethe("incentives", "ledger", *arguments)
        assert code == 0 and out.splitlines()[-1].split() == ["a", "42", "4", "38"]


def test_periods_say_how_many_serve_each_job(server: Server, lethe: Any) -> None:
    server.answers[f"GET {FEDERATION}/periods"] = [(200, {"items": [PERIOD], "next_cursor": None})]
    code, out, _ = lethe("incentives", "periods")
    assert code == 0 and "run two: 2" in out


def test_a_stored_period_comes_out_again_or_is_seen_not_to() -> None:
    assert comes_out_again(Period.read(PERIOD)) is True
    assert comes_out_again(Period.read({**PERIOD, "serves": {"a": JOBS[0], "b": JOBS[1]}})) is False
    assert comes_out_again(Period.read({**PERIOD, "populations": []})) is None, "somebody was erased"
