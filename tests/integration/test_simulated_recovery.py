"""Recoveries in simulated experiments: after approximate and exact erasures, in one process and in two, interrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lethe.failures import CommandFailed
from lethe.simulation import Results, simulate
from lethe.simulation.scenario import parse
from tests.integration.test_simulation import document, text

QUICK = {"encoder_epochs": 5, "latent_size": 8}
RECOVERIES: dict[str, dict[str, Any]] = {
    "imba_ulrc": QUICK,
    "fedrs": {},
    "moon": {},
    "quickdrop": {"share": 0.1, "distillation_epochs": 2, "local_epochs": 3},
}


def scenario(recovery: dict[str, Any], **changes: Any) -> dict[str, Any]:
    event: dict[str, Any] = {"when": "finished", "erase": ["client-1"], "recovery_rounds": 2, "recovery": recovery}
    return document({"stop": {"rounds": 2}}, script=[event | changes.pop("event", {})], clients=4, **changes)


def play(method: str, out_dir: Path | None = None, **changes: Any) -> Results:
    return simulate(parse(scenario({"method": method, "params": RECOVERIES[method]}, **changes)), out_dir=out_dir)


@pytest.mark.parametrize("method", RECOVERIES)
def test_a_recovery_takes_its_rounds_after_an_approximate_erasure(method: str) -> None:
    approximate = {"method": "not", "guarantee": "approximate"}
    results = play(method, event=approximate)
    assert results.summary.status == "completed"
    assert [row.round for row in results.rounds][-2:] == [3, 4]
    plain = simulate(parse(scenario({"method": "plain"}, event=approximate)))
    assert [row.digest for row in plain.rounds][-1] != [row.digest for row in results.rounds][-1]


def test_a_class_that_nobody_has_left_is_recovered_as_without_the_method() -> None:
    """Nobody can make samples of it, so everybody trains on what it has; the erasure completes."""
    wide = {"name": "mlp", "params": {"input_shape": [8, 8], "num_classes": 11, "hidden": [8]}}
    ends = []
    for recovery in ({"method": "imba_ulrc", "params": {**QUICK, "skewed_class": 10}}, {"method": "plain"}):
        wanted = scenario(recovery, event={"method": "not", "guarantee": "approximate"})
        wanted["run"]["model"] = wide
        results = simulate(parse(wanted))
        assert [erasure.status for erasure in results.erasures] == ["completed"]
        ends.append([row.digest for row in results.rounds])
    assert ends[0] == ends[1]


def test_an_exact_erasure_is_followed_by_it_too() -> None:
    results = play("imba_ulrc", event={"method": "retrain"})
    assert [row.round for row in results.rounds][-4:] == [1, 2, 3, 4]


@pytest.mark.parametrize("method", ["imba_ulrc", "moon"])
def test_two_processes_give_the_same_as_one(method: str, tmp_path: Path) -> None:
    assert text(play(method, tmp_path / "one")) == text(play(method, tmp_path / "two", processes=2))


def test_a_recovery_that_does_not_exist_is_refused() -> None:
    with pytest.raises(CommandFailed, match="no recovery is called magic"):
        simulate(parse(scenario({"method": "magic"})))
