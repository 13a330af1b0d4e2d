"""Selection policies that know clients, in simulated federations: training, erasures, pre-training, costs."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks import selection as benchmark
from benchmarks.selection_report import interval
from benchmarks.selection_scenarios import PRESETS
from coordinator.store import tables as t
from lethe.cli import main
from lethe.failures import CommandFailed
from lethe.simulation import Results, simulate
from lethe.simulation.coordinator import SimulatedCoordinator, run_to_end
from lethe.simulation.pretraining import pretrain
from lethe.simulation.results import line
from lethe.simulation.scenario import parse
from services.core import digests
from services.tensors import codec

CLIENTS = 8
RUN: dict[str, Any] = {
    "model": {"name": "mlp", "params": {"input_shape": [8, 8], "num_classes": 10, "hidden": [8]}},
    "stop": {"rounds": 4},
    "local": {"epochs": 2, "learning_rate": 0.3},
    "training": {"algorithm": "fedavg", "clients_per_round": 3},
}


def document(selection: Any, **changes: Any) -> dict[str, Any]:
    return {
        "seed": 3,
        "run": {**RUN, "selection": selection},
        "data": {"source": "digits", "partition": "by-class:0.8", "samples_per_client": 40, "test_samples": 100},
        "clients": CLIENTS,
        **changes,
    }


def text(results: Results) -> str:
    return "".join(line(row) + "\n" for row in results.rows)


@pytest.mark.parametrize("policy", ["k_center", "clusters", "dqn"])
def test_profiles_are_counted_and_the_same_scenario_gives_the_same_rows(policy: str, tmp_path: Path) -> None:
    script = [{"after_round": 3, "erase": ["client-1"], "method": "retrain"}]
    once = simulate(parse(document(policy, script=script)), tmp_path)
    again = simulate(parse(document(policy, script=script)))
    assert text(once) == text(again)
    (erasure,) = once.erasures
    assert erasure.status == "completed"
    asked = sum(row.participants for row in once.rounds)
    assert once.summary.client_updates == asked + CLIENTS + (CLIENTS - 1), "all were profiled, and all who remain again"


async def _certificate(coordinator: SimulatedCoordinator) -> dict[str, Any]:
    await coordinator.open()
    try:
        async with coordinator.database.read() as connection:
            (row,) = (await connection.execute(t.certificates.select())).all()
            states = (await connection.execute(t.cohorts.select())).all()
        assert all("client-1" not in (cohort.selection or {}).get("clients", []) for cohort in states)
        envelope = json.loads(row.envelope)
        return dict(json.loads(base64.b64decode(envelope["payload"]))["predicate"])
    finally:
        await coordinator.close()


def test_the_certificate_says_that_the_policy_had_seen_the_leaver(tmp_path: Path) -> None:
    script = [{"after_round": 3, "erase": ["client-1"], "method": "retrain"}]
    simulate(parse(document("k_center", script=script)), tmp_path)
    predicate = run_to_end(_certificate(SimulatedCoordinator(tmp_path, 3)))
    (told,) = [one["explanation"] for one in predicate["still_shaped_by"] if one["aspect"] == "selection-state"]
    assert "k_center" in told and "fence" in told


def test_pre_training_is_repeatable_and_warm_starts_a_run(tmp_path: Path) -> None:
    figures: list[dict[str, float]] = []
    scenario = parse(document({"policy": "dqn", "target_accuracy": 0.5}))
    network = pretrain(scenario, 2, lambda _, found: figures.append(found))
    again = pretrain(scenario, 2, lambda _, found: None)
    assert network.keys() == again.keys() and all((network[name] == again[name]).all() for name in network)
    assert [one["steps"] for one in figures] == [9.0, 18.0], "three clients in each of three rounds that were judged"
    assert not [name for name in network if name.startswith(("memory", "cosines", "profile", "times"))]
    path = tmp_path / "network.safetensors"
    codec.write_file(path, network)
    spec = {"policy": "dqn", "state": digests.of_bytes(path.read_bytes())}
    started = simulate(parse(document(spec, uploads=[str(path)])))
    assert started.summary.status == "completed"
    with pytest.raises(CommandFailed, match="upload it first"):
        simulate(parse(document(spec)))


def test_the_command_writes_a_network_to_upload_and_goes_on_from_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario, first, second = (tmp_path / name for name in ("scenario.yaml", "first", "second"))
    scenario.write_text(yaml.safe_dump(document({"policy": "dqn", "target_accuracy": 0.5}, name="training")))
    options = ["selection", "train", str(scenario), "--episodes", "1"]
    assert command(monkeypatch, *options, "--out", str(first)) == 0
    shown = capsys.readouterr()
    assert shown.out.strip() == digests.of_bytes(first.read_bytes())
    assert "episode 1 of 1: " in shown.err and "steps 9\n" in shown.err and f"lethe blobs upload {first}" in shown.err
    assert command(monkeypatch, *options, "--out", str(second), "--start", str(first), "--seed", "4") == 0
    assert "steps 18" in capsys.readouterr().err, "it goes on where the first ended"


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Any:
    """`lethe …`; gives its exit code."""
    monkeypatch.setattr(sys, "argv", ["lethe", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code or 0


def test_the_command_refuses_a_policy_that_learns_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(yaml.safe_dump(document("k_center", name="training")))
    assert command(monkeypatch, "selection", "train", str(scenario), "--out", str(tmp_path / "none")) != 0
    assert "learns nothing" in capsys.readouterr().err and not (tmp_path / "none").exists()


def test_a_policy_that_learns_nothing_is_not_pre_trained() -> None:
    with pytest.raises(CommandFailed, match="learns nothing"):
        pretrain(parse(document("k_center")), 1, lambda _, found: None)


def test_the_benchmark_compares_policies_round_by_round(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    small = replace(PRESETS["small"], rounds=3, samples=15, epochs=2, episodes=1, pretraining_rounds=2)
    monkeypatch.setattr(benchmark, "PRESETS", {"small": small})
    chosen = [part for policy in ("uniform", "k_center", "dqn") for part in ("--method", policy)]
    options = ["--json", "--dataset", "digits", "--seeds", "1", "--processes", "1", "--out", str(tmp_path)]
    assert benchmark.main([*options, *chosen]) == 0
    _, *rows = map(json.loads, capsys.readouterr().out.splitlines())
    assert {tuple(row) for row in rows} == {("dataset", "policy", "seed", "round", "accuracy", "client_s")}
    by_policy = {policy: [row for row in rows if row["policy"] == policy] for policy in ("uniform", "k_center", "dqn")}
    assert [row["round"] for row in by_policy["dqn"]] == [1, 2, 3]
    first = {policy: found[0]["accuracy"] for policy, found in by_policy.items()}
    assert len(set(first.values())) == 1, "the first round is applied as it is stored: pairs start alike"
    spent = {policy: found[-1]["client_s"] for policy, found in by_policy.items()}
    assert spent["k_center"] == spent["dqn"] == spent["uniform"] + 99
    page = (tmp_path / "report.md").read_text("utf-8")
    assert "The paper's figures" in page and "k_center" in page


def test_an_interval_is_that_of_students_t() -> None:
    assert interval([1.0, 2.0, 3.0, 4.0, 5.0]) == "+3.00 [+1.04, +4.96]"
    assert interval([1.0]) == "+1.00"
