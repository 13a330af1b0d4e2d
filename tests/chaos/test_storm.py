"""A short `make chaos`: random kills, a database stopped at once, a flushed Redis. And a short `make storm`:
hostile clients and a failover."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from benchmarks.chaos import torment_and_compare
from benchmarks.storm import Size, is_sound, run_storm

ROUNDS = 8


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("backend", "mode"), [("sqlite", "fedavg"), ("postgres", "fedbuff")])
def test_random_kills_lose_nothing_and_count_nothing_twice(backend: str, mode: str) -> None:
    row = torment_and_compare(backend, mode, argparse.Namespace(rounds=ROUNDS, kills=3, seed=5))
    assert row["kills"] + row["database_stops"] > 0, "the run ended before anything was broken"
    assert (row["lost"], row["duplicated"], row["replayed"]) == (0, 0, f"{ROUNDS}/{ROUNDS}")
    assert row["reference_digest"] in (None, row["digest"])
    assert row["findings"] == []


@pytest.mark.timeout(600)
def test_hostile_clients_and_a_failover_stop_neither_honest_runs_nor_erasures(tmp_path: Path) -> None:
    row = run_storm("postgres", tmp_path / "site", Size(seconds=14.0, rounds=4, deadline_s=1.0))
    assert row["failovers"] == 1 and is_sound(row), json.dumps(row, indent=1)
