"""The benchmarks at toy sizes: that they measure what they say, never how fast it was."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import pytest

from benchmarks import certificate, coordination, erasure, forgetting, incentive, longpoll, processes, scale, training
from benchmarks.coordination import Cell, measure_bare
from benchmarks.figures import median_gap, percentile
from benchmarks.payload import Payload
from benchmarks.processes import ProcessDied, family, running
from services.tensors.codec import layout_of
from services.tensors.streams import StoredFile
from tests.support.forked import Forked


def rows_printed(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    environment, *rows = map(json.loads, capsys.readouterr().out.splitlines())
    assert environment["environment"]["cores"] >= 1
    return rows


@pytest.fixture
def quick_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of the `lethe` command that need not import first, where it is not they that are measured."""
    start_python = processes.start_python

    def start(arguments: Sequence[str], output: IO[bytes], environment: Mapping[str, str]) -> Any:
        module, *others = arguments
        if module != "lethe.cli":
            return start_python(arguments, output, environment)
        return Forked(others, env=environment, cwd=processes.ROOT, stdout=output)

    monkeypatch.setattr(processes, "start_python", start)


def test_coordination_prints_the_promised_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        coordination.main(["--json", "--clients", "2", "--payload-mb", "0.1", "--rounds", "2", "--streams", "3"]) == 0
    )
    (row,) = rows_printed(capsys)
    assert (row["clients"], row["payload_mb"], row["backend"], row["blobs"]) == (2, 0.1, "sqlite", "file")
    assert row["streams"] == 3
    assert row["seconds_per_round"] > 0 and row["cpu_s"] > 0 and row["peak_rss_mb"] > 20
    assert 1.0 <= row["wire_ratio"] < 1.1


def test_a_certificate_over_many_artefacts_stays_small(capsys: pytest.CaptureFixture[str]) -> None:
    """A certificate that listed them, at 243 bytes each, would have 5 MB."""
    assert certificate.main(["--json", "--artefacts", "20000"]) == 0
    (row,) = rows_printed(capsys)
    assert row["artefacts"] == 20_000 and row["sign_s"] > 0 and row["list_mb"] > 4
    assert row["certificate_bytes"] < 10_000 and row["proof_bytes"] < 2_000


def test_the_bare_reference_moves_the_same_bytes() -> None:
    row = measure_bare(Cell(num_clients=2, payload_mb=0.1, rounds=3, max_seconds=60))
    assert row["rounds"] == 3
    assert 1.0 <= row["wire_ratio"] < 1.1


def test_longpoll_hears_of_every_task(capsys: pytest.CaptureFixture[str]) -> None:
    assert longpoll.main(["--json", "--workers", "5", "--repeats", "3", "--idle-s", "0.1"]) == 0
    (row,) = rows_printed(capsys)
    assert row["workers"] == 5
    assert 0 < row["wake_one_p50_ms"] <= row["wake_one_p99_ms"] <= row["wake_one_p99_from_post_ms"]
    assert 0 < row["wake_all_p50_ms"] <= row["wake_all_p99_ms"]


@pytest.mark.usefixtures("quick_starts")
def test_training_counts_the_same_steps_for_both_sides(capsys: pytest.CaptureFixture[str]) -> None:
    toy = ["--clients", "2", "--samples", "20", "--rounds", "1", "--batch-size", "8", "--processes", "1"]
    assert training.main(["--json", "--quick", *toy]) == 0
    (row,) = rows_printed(capsys)
    assert row["steps"] == 2 * 1 * 3
    assert row["seconds"] > 0 and row["plain_one_process_s"] > 0 and row["plain_processes_s"] > 0


def test_scale_does_the_same_work_in_four_ways(capsys: pytest.CaptureFixture[str]) -> None:
    toy = ["--clients", "6", "--samples", "30", "--group-size", "4", "--repeats", "1"]
    assert scale.main(["--json", *toy, "--populations", ""]) == 0
    rows = rows_printed(capsys)
    assert [row["way"] for row in rows] == ["plain_loop", "per_client", "aggregate_only", "vmap"]
    assert all(row["clients"] == 6 and row["updates_per_s"] > 0 and row["ratio"] > 0 for row in rows)
    assert rows[0]["ratio"] == 1


def test_scale_simulates_whole_federations(capsys: pytest.CaptureFixture[str]) -> None:
    assert scale.main(["--json", "--repeats", "0", "--populations", "120", "--rounds", "2"]) == 0
    (row,) = rows_printed(capsys)
    assert (row["clients"], row["rounds"]) == (120, 2)
    assert row["updates_per_s"] > 0 and 0 < row["coordinator_share"] < 1 and row["memory_mb"] > 50


@pytest.mark.usefixtures("quick_starts")
def test_erasure_says_what_was_redone_and_how_good_the_models_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert erasure.main(["--json", "--clients", "4", "--topology", "mmt"]) == 0
    (row,) = rows_printed(capsys)
    assert (row["topology"], row["clients"], row["method"]) == ("mmt", 4, "reinit")
    assert 0 < row["seconds_to_fence"] < row["seconds_to_first_clean"] <= row["seconds_to_completed"]
    assert row["merge_seconds"] > 0 and row["client_updates_redone"] > 0
    assert all(0 < row[f"accuracy_{which}"] <= 1 for which in ("before", "first_clean", "completed"))
    assert row["cohorts_touched"] and row["cohorts_untouched"]


def test_every_update_is_a_valid_file_of_its_own(tmp_path: Path) -> None:
    payload = Payload(4096)
    digests = set()
    for client, number in ((0, 1), (0, 2), (1, 1)):
        digest, pieces = payload.update(client, number)
        content = b"".join(pieces)
        file = tmp_path / digest.removeprefix("sha256:")
        file.write_bytes(content)
        assert digest == f"sha256:{hashlib.sha256(content).hexdigest()}"
        assert len(content) == payload.file_bytes
        assert len(b"".join(payload.raw(client, number))) == payload.raw_bytes == layout_of(StoredFile(file)).data_bytes
        digests.add(digest)
    payload.write_model(tmp_path / "model")
    assert {layout_of(StoredFile(file)) for file in tmp_path.iterdir()} == {layout_of(StoredFile(tmp_path / "model"))}
    assert len(digests) == 3


def test_no_process_outlives_its_measurement(tmp_path: Path) -> None:
    with running("sleeper", ["asyncio"], tmp_path / "log") as sleeper:
        pass
    with pytest.raises(ProcessDied), running("failing", ["no.such.module"], tmp_path / "log") as failing:
        failing.wait(30)
    assert not {sleeper.pid, failing.pid} & set(family(os.getpid()))


def test_a_slow_first_round_does_not_count() -> None:
    assert median_gap([0.0, 9.0, 10.0, 12.0, 13.0]) == 1.0
    assert median_gap([0.0, 9.0]) == 9.0


def test_percentiles_are_measured_values() -> None:
    values = [float(value) for value in range(1, 101)]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile([7.0], 0.99)) == (50.0, 99.0, 7.0)


@pytest.mark.usefixtures("quick_starts")
def test_forgetting_says_what_is_left_of_the_leaver_and_what_it_cost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toy = ["--dataset", "digits", "--method", "not", "--seeds", "1", "--rounds", "2", "--samples", "30"]
    assert forgetting.main(["--json", *toy, "--out", str(tmp_path)]) == 0
    retrained, negated = rows_printed(capsys)
    assert (retrained["method"], negated["method"]) == ("retrain", "not")
    assert (retrained["cost_ratio"], retrained["bytes_ratio"]) == (1, 1)
    assert (retrained["client_updates"], negated["client_updates"]) == (2 * 9, 2 * 9)
    for name in ("forgotten_accuracy", "remaining_accuracy", "test_accuracy", "canary_success", "mia_auc"):
        assert 0 <= negated[name] <= 1
    assert negated["bytes_ratio"] == 1 and negated["cost_ratio"] > 0
    assert negated["mia_auc_retrain"] == retrained["mia_auc"]
    assert "| `not` |" in (tmp_path / "report.md").read_text("utf-8")
    for name in ("mia_auc", "mia_tpr_at_low_fpr", "mia_f1", "mia_accuracy", "likelihood_auc", "canary_success"):
        assert 0 <= negated[f"before_{name}"] <= 1


def test_the_game_is_above_the_other_strategies_with_the_papers_reward(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert incentive.main(["--json", "--seeds", "3", "--out", str(tmp_path)]) == 0
    rows = rows_printed(capsys)
    courses = [row for row in rows if "period" in row]
    assert set(courses[0]) == {"seed", "reward", "strategy", "period", "total_utility"}
    ends = {(r["reward"], r["strategy"], r["seed"]): r["total_utility"] for r in courses if r["period"] == 300}
    assert len(ends) == 3 * 4 * 3
    for seed in (1, 2, 3):
        game = ends["paper", "game", seed]
        assert all(game > ends["paper", strategy, seed] for strategy in ("random", "round_robin", "greedy"))
    assert {row["is_settled"] for row in rows if row.get("figure") == "equilibrium" and row["reward"] == "paper"} == {
        True
    }
    assert "Fig. 4(c)" in (tmp_path / "report.html").read_text("utf-8")
