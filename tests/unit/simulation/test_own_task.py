"""A task of one's own in a simulation: the file that a worker runs with `--task`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from lethe.failures import CommandFailed
from lethe.simulation import simulate
from lethe.simulation.client_data import OwnTaskData
from lethe.simulation.scenario import parse
from services.models.weights import save_tensors
from tests.support.documents import EXAMPLES


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(EXAMPLES, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def document(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((EXAMPLES / "own-simulation.yaml").read_text("utf-8"))
    return {**found, "run": {**found["run"], "stop": {"rounds": 2}}, "script": [], **changes}


def test_a_task_of_ones_own_is_trained_and_a_client_and_samples_of_it_are_forgotten(directory: Path) -> None:
    script = [
        {"after_round": 1, "erase": ["client-3"]},
        {"when": "finished", "erase": ["client-0"], "samples": {"client-0": [4, 81]}},
    ]
    results = simulate(parse(document(script=script)), directory / "out")
    assert results.summary.status == "completed"
    assert [(erasure.subjects, erasure.status) for erasure in results.erasures] == [
        (["client-3"], "completed"),
        (["client-0"], "completed"),
    ]
    last = results.rounds[-1]
    assert last.accuracy is not None and last.participants == 4
    assert simulate(parse(document(script=script))).summary.digests == results.summary.digests


def test_the_simulation_starts_from_the_weights_that_models_init_draws(directory: Path) -> None:
    from lethe.commands.models import init

    init(task="own_task.py:Prices", run_file=directory / "own-model.yaml", data="0", out=directory / "drawn")
    save_tensors(directory / "simulated", OwnTaskData(parse(document()), ()).initial_weights())
    assert (directory / "drawn").read_bytes() == (directory / "simulated").read_bytes()


def test_each_client_is_given_its_own_data() -> None:
    own = OwnTaskData(parse(document(data={"source": "{number}{clients}"})), ())
    first, second = own.task_of("client-0"), own.task_of("client-1")
    assert float(first.x[0, 0]) != float(second.x[0, 0])  # type: ignore[attr-defined]
    assert own.unknown("client-0", frozenset({3, 100})) == [100]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"task": None}, "custom is a task's of one's own"),
        ({"task": "own_task.py:Prizes"}, "has no class Prizes"),
        ({"task": "nowhere.py:Prices"}, "no file nowhere.py"),
        ({"data": {"source": "0", "partition": "iid"}}, "data.partition: with a task of one's own"),
        ({"run": {"model": {"name": "custom", "params": {"width": "wide"}}}}, "its model() raised"),
        ({"run": {"model": {"name": "custom"}, "stop": {"accuracy": 0.9}}}, "stop.accuracy needs"),
    ],
)
def test_a_task_that_cannot_be_simulated_says_why(directory: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(CommandFailed) as caught:
        simulate(parse(document(**changes)), directory / "out")
    assert said in caught.value.message
