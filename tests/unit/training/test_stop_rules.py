"""When training ends: rounds, accuracy, accuracy that is steady."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from services.core.digests import of_json
from tests.support.world import World, with_run


def trained(accuracies: list[float], **stop: Any) -> tuple[World, UUID]:
    """A run whose models of rounds 1, 2, ... are judged as given, by its one client; as long as it goes on."""
    judged: dict[str, float] = {}
    rest = iter(accuracies)

    def figures(digest: str) -> dict[str, float]:
        if digest not in judged:
            judged[digest] = next(rest)
        return {"accuracy": judged[digest], "loss": 1.0}

    world, run_id = with_run("a", validation={"at_clients": True}, stop={"rounds": len(accuracies), **stop})
    world.figures_of = figures
    for _ in range(2 * len(accuracies)):
        world.claim_and_submit("a")
        world.settle()
    assert world.run(run_id).status == "completed"
    return world, run_id


def test_training_ends_after_its_rounds() -> None:
    world, run_id = trained([0.9, 0.9, 0.9])
    assert world.cohort(run_id).round == 3
    assert world.run(run_id).reason == "all 3 rounds done"


def test_training_ends_when_accuracy_is_reached() -> None:
    world, run_id = trained([0.5, 0.8, 0.9, 0.95], accuracy=0.8)
    assert world.cohort(run_id).round == 2
    assert world.run(run_id).reason == "accuracy 0.8000 reached in round 2"


def test_training_goes_on_until_accuracy_is_steady() -> None:
    world, run_id = trained([0.9, 0.5, 0.9, 0.9, 0.9, 0.9], accuracy=0.8, max_std=0.01, window=3)
    assert world.cohort(run_id).round == 5


def test_steady_needs_a_whole_window() -> None:
    world, run_id = trained([0.9, 0.9, 0.9, 0.9], accuracy=0.8, max_std=0.1, window=3)
    assert world.cohort(run_id).round == 3


def test_steady_but_low_accuracy_does_not_end_training() -> None:
    world, run_id = trained([0.5, 0.5, 0.5, 0.5], accuracy=0.8, max_std=0.1, window=2)
    assert world.run(run_id).reason == "all 4 rounds done"


def test_line_that_has_all_its_rounds_finishes_when_started_again() -> None:
    world = World()
    world.enrol("a")
    run_id = world.create_run(stop={"rounds": 1}, init=world.store_blob(of_json("weights")))
    world.provenance[of_json("weights")] = frozenset()
    world.claim_and_submit("a")
    world.settle()
    assert world.run(run_id).status == "completed"
