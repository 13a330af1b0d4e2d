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


def judged_by(*claims: tuple[int, float], quorum: int | None = None) -> tuple[World, UUID]:
    """Round 1 of a run that ends at 0.9, judged by clients that claim so many samples and such an accuracy each."""
    names = [f"c{index}" for index in range(len(claims))]
    training = {"algorithm": "fedavg", "quorum": quorum, "deadline_s": 5.0}
    stop = {"rounds": 3, "accuracy": 0.9}
    world, run_id = with_run(*names, validation={"at_clients": True}, stop=stop, training=training)
    world.claim_and_submit(*names)
    world.settle()
    for name, (num_samples, accuracy) in list(zip(names, claims, strict=True))[: quorum or len(names)]:
        world.figures_of = lambda digest, said=accuracy: {"accuracy": said}  # type: ignore[misc]
        (granted,) = world.claim(name)
        world.submit(granted.task, num_samples)
    world.advance(6)
    world.tick()
    world.settle()
    assert world.cohort(run_id).round == 1
    return world, run_id


def test_a_stop_rule_is_not_met_by_the_word_of_one_client_of_ten() -> None:
    world, run_id = judged_by((10**9, 1.0), *[(10, 0.1)] * 9)
    assert world.run(run_id).status == "running"
    (judged,) = [c for c in world.state.checkpoints.values() if c.round == 1]
    assert judged.metrics["clients_accuracy"] < 0.4


def test_a_stop_rule_is_not_met_by_the_only_client_that_answered() -> None:
    world, run_id = judged_by((10, 1.0), (10, 0.1), quorum=1)
    assert world.run(run_id).status == "running"


def test_a_stop_rule_is_not_kept_from_being_met_by_one_clients_sample_count() -> None:
    world, run_id = judged_by((10**9, 0.0), *[(10, 1.0)] * 40)
    assert world.run(run_id).status == "completed"


def test_a_stop_rule_is_met_when_all_report_exactly_what_it_asks_for() -> None:
    world, run_id = judged_by((10, 0.9), (7, 0.9), (13, 0.9))
    assert world.run(run_id).status == "completed"
