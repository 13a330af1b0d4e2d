"""Runs of clusters that stop by their best line keep every law, and the store's slices tell the same story."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.property.engine_machine import BUFFERED, CHAIN, FEDAVG, JUDGED, LINES, EngineMachine
from tests.property.seeded_walks import walk
from tests.property.test_slices import Store, StoredWorld

RANDOM = {"kind": "clusters", "num_clusters": 2, "assignment": "random"}
RULE = {"rounds": 6, "accuracy": 0.5, "window": 2, "max_std": 0.25}
STOPPING: tuple[dict[str, Any], ...] = (
    {"topology": RANDOM, "training": FEDAVG, "validation": JUDGED, "stop": RULE},
    {"topology": {**RANDOM, "merge": "best"}, "training": BUFFERED, "validation": JUDGED, "stop": RULE},
    {
        "topology": {**RANDOM, "num_clusters": 1, "max_size": 4, "inside": CHAIN},
        "training": FEDAVG,
        "validation": {**JUDGED, "parts": False},
        "stop": {"rounds": 4, "accuracy": 0.6},
    },
)


class StoppingMachine(EngineMachine):
    def create_runs(self, specs: list[dict[str, Any]], num_rounds: int, order: list[str]) -> None:
        """As the others, with a stop rule: which one follows from what would have been run."""
        place = (*LINES, *specs).index(specs[0]) + num_rounds
        super().create_runs([STOPPING[place % len(STOPPING)], *specs[1:]], num_rounds, order)


@pytest.fixture
def store() -> Iterator[Store]:
    store = Store()
    store.open()
    yield store
    store.close()


def test_runs_that_stop_by_their_best_line_keep_every_law() -> None:
    stopped = 0

    class Counted(StoppingMachine):
        def teardown(self) -> None:
            super().teardown()
            nonlocal stopped
            stopped += any(cohort.extra_rounds < 0 for cohort in self.world.state.cohorts.values())

    walk(range(45), machine_type=Counted)
    assert stopped >= 10, "few of the walks get to the rule"


@pytest.mark.parametrize("seed", [0, 1, 3, 5])
def test_slices_of_runs_that_stop_lead_to_the_same_decisions(seed: int, store: Store) -> None:
    class StoredMachine(StoppingMachine):
        def __init__(self) -> None:
            super().__init__()
            self.world = StoredWorld(figures_of=self.world.figures_of)
            self.world.store = store

    walk([seed], machine_type=StoredMachine)
