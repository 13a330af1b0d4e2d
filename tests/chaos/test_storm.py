"""A short `make chaos`: random kills, a database stopped at once, a flushed Redis."""

from __future__ import annotations

import argparse

import pytest

from benchmarks.chaos import torment_and_compare

ROUNDS = 8


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("backend", "mode"), [("sqlite", "fedavg"), ("postgres", "fedbuff")])
def test_random_kills_lose_nothing_and_count_nothing_twice(backend: str, mode: str) -> None:
    row = torment_and_compare(backend, mode, argparse.Namespace(rounds=ROUNDS, kills=3, seed=5))
    assert row["kills"] + row["database_stops"] > 0, "the run ended before anything was broken"
    assert (row["lost"], row["duplicated"], row["replayed"]) == (0, 0, f"{ROUNDS}/{ROUNDS}")
    assert row["reference_digest"] in (None, row["digest"])
