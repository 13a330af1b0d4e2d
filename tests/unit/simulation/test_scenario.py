"""Scenario files: what is wrong with one is said by key, with what is allowed; the run is completed from the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lethe.failures import CommandFailed
from lethe.simulation.client_data import ClientData
from lethe.simulation.scenario import LONG_LEASE_S, ScenarioUnusable, parse, read

MODEL = {"name": "mlp", "params": {"input_shape": [8, 8], "num_classes": 10}}


def document(**changes: Any) -> dict[str, Any]:
    return {"seed": 5, "run": {"model": MODEL}, "data": {"source": "digits"}, "clients": 4, **changes}


def fault(**changes: Any) -> str:
    with pytest.raises(ScenarioUnusable) as caught:
        parse(document(**changes))
    assert caught.value.exit_code == 2
    return caught.value.message


def test_a_mistyped_key_is_named_with_the_one_that_was_meant() -> None:
    assert "data.partiton: unknown key, did you mean partition?" in fault(data={"source": "digits", "partiton": "iid"})
    assert "run.stop.ruonds: unknown key, did you mean rounds?" in fault(run={"model": MODEL, "stop": {"ruonds": 3}})
    assert "script.0.erace: unknown key, did you mean erase?" in fault(script=[{"at_s": 1.0, "erace": ["client-0"]}])


def test_an_unknown_choice_is_shown_with_the_choices() -> None:
    message = fault(durations={"kind": "normal"})
    assert "durations" in message and "'pareto'" in message and "'log_normal'" in message
    assert "training.path: found 'fast'; input should be 'single' or 'stacked'" in fault(training={"path": "fast"})


def test_an_event_has_one_moment_and_does_one_thing() -> None:
    assert "exactly one of at_s, after_round, when" in fault(script=[{"erase": ["client-0"]}])
    assert "exactly one of erase, join, leave" in fault(script=[{"at_s": 1.0, "join": 1, "leave": ["client-0"]}])


def test_what_an_erasure_asks_for_is_checked_like_a_request() -> None:
    message = fault(script=[{"at_s": 1.0, "erase": ["client-0"], "fallback": "retrain"}])
    assert "script.0: audit and fallback belong to guarantee approximate" in message
    message = fault(script=[{"at_s": 1.0, "erase": ["client-0"], "samples": {"client-1": [3]}}])
    assert "script.0: samples names the samples of each subject" in message


def test_events_name_clients_that_are_there_or_will_have_joined() -> None:
    message = fault(script=[{"at_s": 1.0, "erase": ["client-4"]}])
    assert "script.0: there is no client-4; there are client-0 to client-3" in message
    joined = parse(document(script=[{"at_s": 1.0, "join": 1}, {"at_s": 2.0, "erase": ["client-4"]}]))
    assert joined.names[-1] == "client-4"


def test_only_clients_that_are_there_can_have_spoilt_samples() -> None:
    message = fault(data={"source": "digits", "spoilt": {"client-9": "noisy"}})
    assert "data.spoilt: there is no client-9; there are client-0 to client-3" in message
    assert "'noisy' or 'adversarial'" in fault(data={"source": "digits", "spoilt": {"client-1": "evil"}})


def test_an_unknown_partition_is_shown_with_those_there_are() -> None:
    message = fault(data={"source": "digits", "partition": "dirichlett:0.5"})
    assert "data: partition: found 'dirichlett:0.5'; known are iid, dirichlet, by-class, writer, random" in message


def test_clients_that_draw_their_own_samples_need_a_number() -> None:
    assert "data: partition random needs samples_per_client" in fault(data={"source": "digits", "partition": "random"})


def test_the_run_has_the_scenarios_name_and_seed_and_is_judged_on_its_test_samples() -> None:
    run = parse(document(name="knot", run={"model": MODEL, "stop": {"accuracy": 0.9}})).run
    assert (run.name, run.seed, run.lease_s) == ("knot", 5, LONG_LEASE_S)
    assert run.validation.data is not None
    own = parse(document(run={"model": MODEL, "seed": 9, "lease_s": 2.0})).run
    assert (own.seed, own.lease_s) == (9, 2.0)


def test_options_take_the_place_of_what_the_file_says(tmp_path: Path) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(f"seed: 1\nclients: 4\ndata: {{source: digits}}\nrun: {{model: {MODEL}}}\n", "utf-8")
    assert read(path).run.seed == 1
    assert read(path, {"seed": 7}).run.seed == 7


def test_a_missing_data_file_says_where_it_was_looked_for_and_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed) as caught:
        ClientData(parse(document(data={"source": "npz:fashion_mnist.npz"})), [tmp_path])
    assert str(tmp_path) in caught.value.message and "lethe data get fashion-mnist" in caught.value.message
    assert caught.value.exit_code == 2
