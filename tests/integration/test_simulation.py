"""Scenarios played under the virtual clock: the same rows in one process and in two, interrupted or not."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog
import yaml

from coordinator.store import accounts, blobs
from lethe.failures import CommandFailed
from lethe.simulation import Results, simulate
from lethe.simulation.coordinator import SimulatedCoordinator
from lethe.simulation.results import line
from lethe.simulation.run import Progress
from lethe.simulation.scenario import Scenario, parse
from services.tensors import codec
from services.wire.v1.resources import FederationCreate
from worker.execution import describe

MODEL = {"name": "mlp", "params": {"input_shape": [8, 8], "num_classes": 10, "hidden": [8]}}
CLUSTERS = {"kind": "clusters", "num_clusters": 2}
FEDBUFF = {"algorithm": "fedbuff", "buffer_size": 3, "concurrency": 5}
ERASE = {"after_round": 2, "erase": ["client-1"]}


def document(run: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    return {
        "seed": 3,
        "run": {"model": MODEL, "stop": {"rounds": 3}, "local": {"learning_rate": 0.3}, **(run or {})},
        "data": {"source": "digits", "samples_per_client": 40, "test_samples": 100},
        "clients": 6,
        "durations": {"kind": "pareto", "at_most_s": 20.0},
        **changes,
    }


def play(run: dict[str, Any] | None = None, **changes: Any) -> Results:
    return simulate(parse(document(run, **changes)))


def text(results: Results) -> str:
    return "".join(line(row) + "\n" for row in results.rows)


def test_a_round_lasts_as_long_as_its_slowest_client_and_work_is_accounted_for() -> None:
    results = play(durations={"kind": "measured", "seconds": [2.0, 3.5]})
    ends = [row.virtual_s for row in results.rounds]
    assert ends == [0.0, 3.5, 7.0, 10.5]
    assert [row.participants for row in results.rounds] == [0, 6, 6, 6]
    assert results.summary.client_updates == 18
    assert results.summary.client_s == pytest.approx(sum(row.client_s for row in results.rounds))
    assert results.summary.status == "completed" and results.rounds[-1].accuracy is not None


def test_asynchronous_training_follows_the_virtual_order_of_finishing() -> None:
    results = play({"training": FEDBUFF, "stop": {"rounds": 6}}, durations={"kind": "pareto"})
    ends = [row.virtual_s for row in results.rounds]
    assert all(later > earlier for earlier, later in pairwise(ends[1:]))
    assert all(row.participants == 3 for row in results.rounds[1:])
    synchronous = play({"stop": {"rounds": 6}}, durations={"kind": "pareto"})
    assert results.summary.virtual_s < synchronous.summary.virtual_s / 2


def test_an_erasure_fences_at_its_moment_and_what_is_served_falls_back() -> None:
    results = play(script=[ERASE])
    (erasure,) = results.erasures
    second = next(row.virtual_s for row in results.rounds if row.round == 2)
    assert erasure.status == "completed" and erasure.method == "retrain"
    assert erasure.filed_s == erasure.fenced_s == second
    assert erasure.completed_s == next(r.virtual_s for r in results.rounds if (r.epoch, r.round) == (1, 2))
    assert erasure.updates_redone == 10  # five clients, two rounds
    assert [row.participants for row in results.rounds if row.epoch == 1] == [5, 5, 5]
    before, at_fence = (
        next(r for r in results.served if r.virtual_s == s) for s in (results.rounds[1].virtual_s, second)
    )
    assert at_fence.best == results.rounds[0].accuracy != before.best


def test_clients_join_leave_and_are_forgotten_at_given_moments() -> None:
    script = [
        {"after_round": 1, "join": 1},
        {"after_round": 2, "leave": ["client-0"]},
        {"when": "finished", "erase": ["client-6"]},
    ]
    results = play(script=script, durations={"kind": "fixed"})
    assert [row.participants for row in results.rounds] == [0, 6, 6, 6, 5]  # round 2 was open when it joined
    assert results.erasures[0].subjects == ["client-6"] and results.erasures[0].status == "completed"


def test_samples_are_left_out_from_the_fence_on(tmp_path: Path) -> None:
    with_all = play()
    scenario = document(script=[{"after_round": 1, "erase": ["client-1"], "samples": {"client-1": _samples()}}])
    results = simulate(parse(scenario))
    assert results.erasures[0].status == "completed"
    assert results.rounds[-1].participants == 6
    assert results.summary.digests != with_all.summary.digests


def _samples() -> list[int]:
    from lethe.simulation.client_data import ClientData

    everything = frozenset(range(1437))
    held = everything - frozenset(ClientData(parse(document()), []).unknown("client-1", everything))
    return sorted(held)[:2]


def test_leases_that_run_out_before_the_work_ends_are_renewed() -> None:
    assert text(play({"lease_s": 1.0})) == text(play())


def test_a_simulation_from_python_says_nothing_and_leaves_the_callers_logging_alone(
    capfd: pytest.CaptureFixture[str],
) -> None:
    structlog.reset_defaults()
    play()
    assert capfd.readouterr() == ("", "")
    assert not structlog.is_configured()
    with structlog.testing.capture_logs() as heard:
        structlog.configure()
        play()
    structlog.reset_defaults()
    assert heard


@pytest.mark.anyio
async def test_it_plays_where_a_loop_runs_already_as_in_a_notebook() -> None:
    assert text(play()) == text(await asyncio.to_thread(play))


def test_a_caller_may_look_at_every_model_and_stop() -> None:
    seen: list[Progress] = []

    def watch(now: Progress) -> bool:
        seen.append(now)
        return now.round == 2

    results = simulate(parse(document()), progress=watch)
    assert [now.round for now in seen] == [0, 1, 2]
    assert (results.summary.status, results.rounds[-1].round) == ("stopped", 2)


def test_a_class_is_forgotten_by_pruning_what_tells_it_apart() -> None:
    cnn = {"name": "cnn", "params": {"input_shape": [8, 8], "num_classes": 10}}
    wanted = {"method": "fudp", "guarantee": "approximate", "params": {"forget_class": 3}}
    forget = {"after_round": 2, "erase": ["client-1"], "recovery_rounds": 1, **wanted}
    results = play({"model": cnn}, script=[forget])
    (erasure,) = results.erasures
    assert (erasure.method, erasure.status) == ("fudp", "completed")
    assert [row.participants for row in results.rounds if row.epoch == 1][:2] == [5, 5], "rated, then trained"
    with pytest.raises(CommandFailed, match="the model's classes are 0 to 9"):
        play({"model": cnn}, script=[{**forget, "params": {"forget_class": 11}}])


def test_clusters_stop_by_the_best_of_them_and_are_merged() -> None:
    rule = {"rounds": 40, "accuracy": 0.5, "window": 2, "max_std": 0.05}
    stopping = {"topology": CLUSTERS, "training": FEDBUFF, "stop": rule, "local": {"learning_rate": 0.5, "epochs": 2}}
    results = play(stopping)
    assert results.summary.status == "completed" and "reached in round" in (results.summary.reason or "")
    lines = {row.cohort: row for row in results.rounds if row.cohort.startswith("cluster-")}  # the last of each
    assert all(row.round < 40 for row in lines.values())
    best = max(lines.values(), key=lambda row: row.accuracy or 0.0)
    assert f"accuracy {best.accuracy:.4f} reached in round {best.round} of {best.cohort}" == results.summary.reason
    assert results.rounds[-1].cohort == "merged"
    assert text(results) == text(play(stopping, processes=2))


def test_a_method_that_does_not_apply_gives_way_to_its_fallback() -> None:
    early = {"at_s": 0.0, "erase": ["client-1"], "method": "federaser", "guarantee": "approximate"}
    with pytest.raises(CommandFailed, match="nothing to mend"):
        play(script=[early])
    (erasure,) = play(script=[{**early, "fallback": "retrain"}]).erasures
    assert (erasure.method, erasure.status) == ("retrain", "completed")


def test_it_stops_at_the_served_accuracy_the_served_loss_or_the_virtual_second_that_was_given() -> None:
    learning = {"stop": {"rounds": 60}, "local": {"learning_rate": 0.5, "epochs": 2}}
    accurate = play(learning, stop={"accuracy": 0.4})
    assert accurate.summary.status == "stopped"
    assert accurate.reached(0.4) == accurate.summary.virtual_s == accurate.rounds[-1].virtual_s
    certain = play(learning, stop={"loss": 1.9, "of": "worst"})
    assert certain.summary.reason is not None and "fell to stop.loss 1.9" in certain.summary.reason
    assert certain.fell_to(1.9, of="worst") == certain.summary.virtual_s == certain.rounds[-1].virtual_s
    late = play(learning, stop={"virtual_s": 30.0})
    assert late.summary.reason == "stop.virtual_s 30 is reached" and late.summary.virtual_s <= 30.0


@pytest.mark.parametrize("path", ["single", "stacked"])
def test_the_same_seed_gives_the_same_rows_in_one_process_and_in_two(path: str) -> None:
    changes: dict[str, Any] = {"script": [ERASE], "training": {"path": path, "group_size": 4}}
    one = play(**changes)
    assert text(one) == text(play(processes=2, **changes))
    assert text(one) != text(play(seed=4, **changes))


def test_a_model_that_does_not_fit_the_data_is_refused_before_anything_happens() -> None:
    wrong = {"name": "mlp", "params": {"input_shape": [28, 28], "num_classes": 10}}
    with pytest.raises(CommandFailed, match=r"run.model: .*the samples here have \[1, 8, 8\]"):
        play({"model": wrong})


def test_an_event_whose_moment_never_came_is_named_at_the_end() -> None:
    summary = play(script=[{"after_round": 50, "join": 1}]).summary
    assert summary.status == "stopped"
    assert summary.reason == "the moment of script.0 never came: the run had ended before"


def test_a_run_that_cannot_go_on_ends_with_its_reason() -> None:
    results = play({"local": {"learning_rate": 100.0, "weight_decay": 10.0, "batch_size": 8, "epochs": 5}})
    assert results.summary.status in ("paused", "failed")
    assert results.summary.reason is not None and "round 1" in results.summary.reason


@pytest.mark.anyio
async def test_what_a_killed_simulation_has_stored_is_not_stored_again(tmp_path: Path) -> None:
    coordinator = SimulatedCoordinator(tmp_path, seed=1)
    try:
        await coordinator.open()
        async with coordinator.database.write() as connection:
            wanted = FederationCreate(name="federation")
            await accounts.add_federation(connection, coordinator.federation_id, wanted, coordinator.clock())
        file = tmp_path / "made.safetensors"
        digests = set[str]()
        for _ in range(2):
            codec.write_file(file, {"x": np.ones(3, np.float32)})
            described = describe(file)
            await coordinator.receive(described)
            digests.add(described.digest)
        async with coordinator.database.read() as connection:
            found = await blobs.stored(connection, coordinator.federation_id, digests)
    finally:
        await coordinator.close()
    assert [len(some) for some in found.values()] == [1] and not file.exists()


def test_a_directory_of_another_scenario_is_refused(tmp_path: Path) -> None:
    simulate(parse(document()), tmp_path)
    with pytest.raises(CommandFailed, match="belongs to another scenario"):
        simulate(parse(document(seed=4)), tmp_path)


def test_a_simulation_that_is_killed_again_and_again_ends_with_the_same_rows(tmp_path: Path) -> None:
    scenario = document(
        {"topology": CLUSTERS, "training": FEDBUFF, "stop": {"rounds": 4}},
        script=[ERASE],
        training={"path": "stacked", "group_size": 3},
    )
    for order, point in enumerate(("shell.before-commit:25", "shell.after-commit:12", "kernel.after:3")):
        # Each process has its own order of sets, which no result may depend on.
        killed = _lethe(tmp_path, scenario, LETHE_CRASH_AT=point, PYTHONHASHSEED=str(order))
        assert killed.returncode == -signal.SIGKILL
    ended = _lethe(tmp_path, scenario, PYTHONHASHSEED="3")
    assert ended.returncode == 0, ended.stderr
    uninterrupted = text(simulate(parse(scenario)))
    assert ended.stdout == (tmp_path / "out" / "results.jsonl").read_text("utf-8") == uninterrupted


def _lethe(directory: Path, scenario: dict[str, Any], **environment: str) -> subprocess.CompletedProcess[str]:
    file = directory / "scenario.yaml"
    file.write_text(yaml.safe_dump(scenario), "utf-8")
    command = [sys.executable, "-m", "lethe.cli", "simulate", str(file), "--out", str(directory / "out"), "--json"]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120, check=False
    )


def test_rows_of_a_scenario_survive_its_file(tmp_path: Path) -> None:
    """The scenario is kept beside its results, whole."""
    simulate(parse(document()), tmp_path)
    kept = Scenario.model_validate_json((tmp_path / "scenario.json").read_text("utf-8"))
    assert kept == parse(document())


def test_a_run_and_an_erasure_in_it_are_served_by_those_who_are_allotted_to_each() -> None:
    """In a tree everybody is in the root, which forgets, and in a cohort that the erasure does not touch."""
    run = {"topology": {"kind": "tree"}, "stop": {"rounds": 5}}
    dividing: dict[str, Any] = {"allocation": "game", "incentives": {"at_least": 1, "reward": "per_client"}}
    plain = play(run, script=[ERASE])
    divided = play(run, script=[{**ERASE, "reward": 300.0}], **dividing)

    assert divided.summary.status == plain.summary.status == "completed"
    assert divided.summary.client_updates < plain.summary.client_updates
    (root,) = [row for row in divided.rounds if row.cohort == "root" and row.round == 4]
    assert 1 <= root.participants < 5, "the others serve the run"
    assert text(divided) == text(play(run, script=[{**ERASE, "reward": 300.0}], **dividing))
