"""Who holds which samples: the same in every run of a scenario, disjoint unless drawn at random."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lethe.failures import CommandFailed
from lethe.simulation.client_data import ClientData
from lethe.simulation.scenario import parse

RUN = {"model": {"name": "mlp", "params": {"input_shape": [8, 8], "num_classes": 10}}}


def client_data(clients: int = 5, folders: tuple[Path, ...] = (), **data: Any) -> ClientData:
    document = {"seed": 2, "run": RUN, "clients": clients, "data": {"source": "digits", **data}}
    return ClientData(parse(document), folders)


def rows(found: ClientData, number: int) -> list[int]:
    return found.task_of(f"client-{number}").train_arrays[0].sum(axis=(1, 2, 3)).tolist()  # type: ignore[no-any-return]


def sizes(found: ClientData, clients: int = 5) -> list[int]:
    return [found.task_of(f"client-{number}").num_train for number in range(clients)]


@pytest.mark.parametrize("how", ["iid", "dirichlet:0.3", "by-class"])
def test_samples_are_divided_without_remainder_and_the_same_every_time(how: str) -> None:
    one, other = client_data(partition=how), client_data(partition=how)
    assert sum(sizes(one)) == 1437
    assert all(rows(one, number) == rows(other, number) for number in range(5))


def test_nobody_holds_more_samples_than_wanted() -> None:
    assert sizes(client_data(samples_per_client=30)) == [30] * 5
    lopsided = sizes(client_data(partition="dirichlet:0.05", samples_per_client=200))
    assert max(lopsided) == 200 and min(lopsided) < 200


def test_clients_that_draw_at_random_may_be_more_than_the_samples() -> None:
    found = client_data(clients=5000, partition="random", samples_per_client=20)
    assert found.task_of("client-4999").num_train == 20
    assert rows(found, 0) != rows(found, 4999)
    assert rows(found, 4999) == rows(client_data(clients=5000, partition="random", samples_per_client=20), 4999)


def test_the_samples_of_a_writer_stay_together(tmp_path: Path) -> None:
    writers = np.arange(1437) % 11
    np.savez(tmp_path / "writers.npz", writer_train=writers, writer_test=np.zeros(360))
    found = client_data(folders=(tmp_path,), partition="writer:writers.npz")
    everything = frozenset(range(1437))
    owned = [everything - frozenset(found.unknown(f"client-{number}", everything)) for number in range(5)]
    of_writers = [{int(writers[sample]) for sample in samples} for samples in owned]
    assert sum(map(len, of_writers)) == 11  # no writer is with two clients
    assert sum(map(len, owned)) == 1437


def test_writers_must_be_named_for_every_sample(tmp_path: Path) -> None:
    np.savez(tmp_path / "writers.npz", writer_train=np.zeros(3))
    with pytest.raises(CommandFailed, match="writer_train with a number for each of the 1437 samples"):
        client_data(folders=(tmp_path,), partition="writer:writers.npz")


def test_samples_that_must_be_left_out_are_gone_for_that_client_only() -> None:
    found = client_data()
    some = frozenset(range(1437)) - frozenset(found.unknown("client-1", frozenset(range(1437))))
    few = frozenset(sorted(some)[:3])
    assert found.task_of("client-1", few).num_train == found.task_of("client-1").num_train - 3
    assert found.unknown("client-1", few) == []
    assert found.unknown("client-0", few) == sorted(few)


def test_the_coordinators_test_set_has_as_many_samples_as_wanted() -> None:
    assert len(client_data().test_set()["y"]) == 360
    fifty = client_data(test_samples=50).test_set()
    assert fifty["x"].shape[0] == len(fifty["y"]) == 50
    assert len(np.unique(fifty["y"])) > 5


def test_the_samples_of_a_noisy_client_say_nothing_about_their_labels() -> None:
    (clean, labels), (noisy, same) = (
        found.task_of("client-1").train_arrays for found in (client_data(), client_data(spoilt={"client-1": "noisy"}))
    )
    assert (labels == same).all()
    assert np.sort(noisy.ravel()).tolist() == np.sort(clean.ravel()).tolist()
    assert (noisy != clean).any(axis=(1, 2, 3)).all()


def test_the_labels_of_an_adversarial_client_are_all_wrong_and_nobody_elses() -> None:
    clean, spoilt = client_data(), client_data(spoilt={"client-1": "adversarial"})
    right, wrong = (found.task_of("client-1").train_arrays[1] for found in (clean, spoilt))
    assert (right != wrong).all() and set(wrong.tolist()) == set(range(10))
    assert rows(clean, 1) == rows(spoilt, 1)
    assert (clean.task_of("client-2").train_arrays[1] == spoilt.task_of("client-2").train_arrays[1]).all()
