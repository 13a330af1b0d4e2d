"""What the benchmarks of forgetting and of exact methods compare differs in what they are about, and in that only."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import forgetting
from benchmarks.exact_variants import FAMILIES, PROBABILITIES
from benchmarks.forgetting_data import Case, make_case
from services.data.sources import load
from services.methods.catalogue import UNLEARNING
from services.topology import influence_tree


@pytest.fixture(scope="module")
def case() -> Case:
    return make_case("digits", 3, (), model="mlp", num_clients=5, samples_per_client=120, alpha=0.5)


def rows_in(samples: np.ndarray, among: np.ndarray) -> set[int]:
    known = {row.tobytes(): number for number, row in enumerate(among)}
    return {known[row.tobytes()] for row in samples if row.tobytes() in known}


def test_strangers_are_training_rows_that_nobody_was_trained_on(case: Case) -> None:
    data = load("digits", ())
    strangers = rows_in(case.strangers[0], data.x_train)
    assert len(strangers) == len(case.strangers[1]) > 0
    for x, _ in (*case.clients, case.validation):
        assert not strangers & rows_in(x, data.x_train)


def test_strangers_have_the_classes_of_the_leaver(case: Case) -> None:
    wanted, found = (np.bincount(y, minlength=10) for _, y in (case.forgotten, case.strangers))
    assert (found <= wanted).all() and found.sum() >= 0.9 * wanted.sum()


def test_every_registered_method_that_needs_no_tree_is_measured_beside_fine_tuning() -> None:
    assert set(forgetting.METHODS) == {*UNLEARNING, "fine-tune"} - {"reinit", "fudp"}
    assert forgetting.METHODS[0] == "retrain"


def test_trees_of_unequal_probabilities_differ_by_their_shape() -> None:
    variants = FAMILIES["probable"].variants
    trees = {
        name: influence_tree.build(
            variant.topology["shape"], list(PROBABILITIES), probabilities=variant.topology.get("probabilities")
        )
        for name, variant in variants.items()
    }
    scores = {name: influence_tree.ids(tree, PROBABILITIES) for name, tree in trees.items()}
    assert scores["huffman"] < scores["shannon_fano"] < scores["uniform"]
