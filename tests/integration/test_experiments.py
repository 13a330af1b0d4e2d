"""The simulated experiments, one tiny cell each on the digits that come with the project."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import exact, knot
from benchmarks.exact_outcomes import outcome_of, served_rounds
from benchmarks.exact_scenarios import cell as exact_cell
from benchmarks.exact_variants import NAMED
from benchmarks.experiments import Cell, simulated
from benchmarks.knot_scenarios import DATASETS, METHODS, PRESETS, VARIANTS
from benchmarks.knot_scenarios import cell as knot_cell
from lethe.simulation.results import ErasureRow, Results, RoundRow, ServedRow, SummaryRow
from lethe.simulation.scenario import parse


def rows_printed(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    _, *rows = map(json.loads, capsys.readouterr().out.splitlines())
    return rows


def test_an_erasure_from_an_influence_tree_is_counted_in_rounds(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    tiny = ["--dataset", "digits", "--method", "mmt", "--seeds", "1", "--rounds", "5", "--processes", "1"]
    assert exact.main(["--json", *tiny, "--out", str(tmp_path)]) == 0
    (row,) = rows_printed(capsys)
    assert (row["dataset"], row["method"], row["seed"]) == ("digits", "mmt", 1)
    assert row["rounds_to_threshold"] >= 1
    assert "<svg" in (tmp_path / "report.html").read_text("utf-8")
    assert "| mmt |" in (tmp_path / "report.md").read_text("utf-8")


def test_every_kind_of_variant_is_played_and_reported(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    variants = ["main", "UUU", "2U1N", "adversarial", "rho-1.0", "baselines"]
    methods = ["retrain", "sisa", "standalone"]
    tiny = [
        "--json",
        "--dataset",
        "digits",
        "--seeds",
        "1",
        "--rounds",
        "4",
        "--processes",
        "1",
        "--out",
        str(tmp_path),
    ]
    chosen = [*(f"--variant={name}" for name in variants), *(f"--method={name}" for name in methods)]
    assert exact.main([*tiny, *chosen]) == 0
    rows = {(row["variant"], row["method"]): row for row in rows_printed(capsys)}
    assert set(rows) == {*((name, "retrain") for name in variants[:-1]), *(("baselines", name) for name in methods[1:])}
    assert len(rows["UUU", "retrain"]["rounds_to_threshold_each"]) == 3
    assert len(rows["2U1N", "retrain"]["rounds_to_threshold_each"]) == 2
    # The leaver was all that was wrong: without it the same is trained as where it was never spoilt.
    assert rows["adversarial", "retrain"]["accuracy_before"] < rows["UUU", "retrain"]["accuracy_before"]
    assert rows["adversarial", "retrain"]["accuracy_after"] == rows["UUU", "retrain"]["accuracy_after"]
    # Whoever trained alone is still there; whoever starts again knows nothing.
    assert rows["baselines", "sisa"]["accuracy_first_clean"] > 0.4
    assert rows["baselines", "standalone"]["accuracy_first_clean"] < 0.3
    text = (tmp_path / "report.md").read_text("utf-8")
    assert "| 0.02 | retrain |" in text and "| 1.0 | retrain |" in text
    assert "| retrain | 3 |" in text  # its third erasure
    assert "a client joins" in (tmp_path / "report.html").read_text("utf-8")


def test_a_variant_that_is_not_there_is_refused_with_those_that_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        exact.main(["--variant", "rhoo"])
    assert "there is no variant rhoo; there are all, main, sequential" in capsys.readouterr().err


def test_an_erasure_from_clusters_is_counted_in_virtual_seconds(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    tiny = ["--dataset", "digits", "--method", "random", "--seeds", "1", "--processes", "1"]
    assert knot.main(["--json", *tiny, "--out", str(tmp_path)]) == 0
    (row,) = rows_printed(capsys)
    assert (row["dataset"], row["method"], row["seed"]) == ("digits", "random", 1)
    assert row["virtual_s_to_target"] > 0 and row["lines_cut"] == 1
    assert "erasure" in (tmp_path / "report.html").read_text("utf-8")


def test_several_clients_are_erased_by_federaser_where_there_is_something_to_mend(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    tiny = ["--dataset", "digits", "--method", "federaser", "--variant", "2 erased", "--seeds", "1", "--processes", "1"]
    assert knot.main(["--json", *tiny, "--out", str(tmp_path)]) == 0
    (row,) = rows_printed(capsys)
    assert (row["variant"], row["erased_by"]) == ("2 erased", "federaser")
    assert 0 < row["client_s_redone"] <= row["client_s"] and row["virtual_s_to_target"] > 0


def test_a_language_model_is_trained_to_a_perplexity(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tinyshakespeare.txt").write_text("To be, or not to be: that is the question. " * 600, "utf-8")
    name, model = "tiny-shakespeare", {"input_shape": [64], "num_classes": 257, "width": 16, "num_layers": 1}
    small = replace(
        DATASETS[name], model={"name": "gpt2", "params": model}, clients=10, asked=6, buffered=2, samples=40
    )
    monkeypatch.setitem(DATASETS, name, replace(small, target=40.0, erased_at_s=3.0, test_samples=20))
    tiny = ["--dataset", name, "--method", "random", "--seeds", "1", "--processes", "1", "--data", str(tmp_path)]
    assert knot.main(["--json", *tiny, "--out", str(tmp_path / "report")]) == 0
    (row,) = rows_printed(capsys)
    assert row["virtual_s_to_target"] > 0 and row["perplexity_before"] > 40
    assert "a perplexity of 40" in (tmp_path / "report" / "report.md").read_text("utf-8")


def test_a_variant_that_does_not_exist_is_shown_with_those_that_do(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        knot.main(["--variant", "3 erased"])
    assert "no variant 3 erased; there are 1 erased, 2 erased, 4 erased" in capsys.readouterr().err


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("dataset", DATASETS)
def test_every_data_set_has_a_scenario_for_every_method_and_number_of_erased_clients(dataset: str, preset: str) -> None:
    for method in METHODS:
        for variant, num_erased in VARIANTS.items():
            made = knot_cell(dataset, method, 1, variant, preset)
            (event,) = parse(made.scenario, made.name).script
            assert event.erase is not None and len(set(event.erase)) == num_erased


def test_rounds_are_counted_from_the_fence_and_the_first_is_one() -> None:
    def published(epoch: int, number: int, accuracy: float, kind: Any = "aggregate") -> RoundRow:
        return RoundRow(float(number), "root", epoch, number, kind, accuracy, None, 10, 10.0, "")

    rounds = [published(0, 0, 0.1, "init"), published(0, 1, 0.9), published(1, 1, 0.8, "reinit")]
    rounds += [published(1, 2, 0.7), published(1, 3, 0.8)]
    served = [ServedRow(0.0, 0.1, 0.1, 0.1, 1), ServedRow(1.0, 0.8, 0.8, 0.8, 1)]
    erasure = ErasureRow(["client-1"], "reinit", "completed", None, 1.0, 1.0, 1.0, 3.0, ["root"], 20, 20.0)
    results = Results(rounds, served, [erasure], SummaryRow(3.0, "completed", None, 40, 40.0, {}))
    outcome = outcome_of(Cell("mnist", "mmt", 1, "main", {}), results)
    (recovery,) = outcome.recoveries
    assert recovery.accuracies == [0.8, 0.7, 0.8]
    assert recovery.rounds_to_threshold == 2  # not the first clean model: it has not been trained yet
    assert recovery.accuracy_before == 0.9


@pytest.mark.parametrize("method", ["retrain", "bmt"])
def test_who_joins_between_two_erasures_takes_part_until_the_end(method: str) -> None:
    played = exact_cell("digits", method, 1, "2U1N", NAMED["2U1N"].variant, "small", 4)
    rounds = [row for row in served_rounds(simulated(played)) if row.kind == "aggregate"]
    took_part = [[row.participants for row in rounds if row.epoch == epoch] for epoch in range(3)]
    assert took_part == [[10] * 4, [9, 9, 9, 10], [9] * 4]
