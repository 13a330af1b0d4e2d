from __future__ import annotations

from typing import Any

import pytest

from services.program.contract import Abort, AskClients, Compute, Erasure, Finish, Publish, Recall, UpdateRef
from services.unlearning.federaser.plan import FedEraserProgram
from tests.support.program_driver import INITIAL, Driver, digest, erasure, update, view


def stored(round: int) -> tuple[UpdateRef, ...]:
    return tuple(update(name, f"{name}{round}", num_samples) for name, num_samples in (("a", 10), ("b", 30)))


def everybody(ask: AskClients) -> tuple[UpdateRef, ...]:
    return tuple(update(name, f"new-{name}{ask.round}", 10) for name in ask.clients or ("a", "c"))


def driver(erased: Erasure, **given: Any) -> Driver:
    return Driver(FedEraserProgram(), view(erased), **{"recall": stored, "answer": everybody, **given})


def test_the_first_round_is_applied_as_stored_and_the_others_are_calibrated() -> None:
    found = driver(erasure(round=3, history=(1, 2, 3)))
    assert isinstance(found.run(), Finish)
    computes = found.taken(Compute)
    kernels = [step.kernel for step in computes]
    assert kernels == ["weighted_step", *2 * ["calibrate_update", "calibrate_update", "weighted_step"]]
    first = computes[0].params
    assert first["base"] == INITIAL
    assert first["updates"] == [
        {"digest": digest("a1"), "weight": 10.0},
        {"digest": digest("b1"), "weight": 30.0},
    ]
    assert [step.round for step in found.taken(Publish)] == [1, 2, 3]


def test_calibration_asks_the_rounds_own_clients_for_half_of_the_epochs_from_the_rebuilt_model() -> None:
    found = driver(erasure(round=2, history=(1, 2)))
    found.run()
    (ask,) = found.taken(AskClients)
    assert ask.clients == ("a", "b")
    assert ask.local is not None and ask.local.epochs == 3  # ⌈0.5 · 5⌉
    assert ask.model == found.taken(Publish)[0].digest
    assert ask.close_at_deadline


def test_each_answer_is_calibrated_by_its_own_stored_update_and_published_with_it() -> None:
    found = driver(erasure(round=2, history=(1, 2)))
    found.run()
    calibrations = [step for step in found.taken(Compute) if step.kernel == "calibrate_update"]
    assert [step.params["stored"] for step in calibrations] == [[digest("a2")], [digest("b2")]]
    last = found.taken(Publish)[-1]
    assert [c.client for c in last.contributions] == ["a", "b"]
    assert all(c.digest is not None and c.digest != digest(f"new-{c.client}2") for c in last.contributions)


def test_a_participant_chosen_by_policy_without_a_stored_update_is_calibrated_by_all_of_the_rounds() -> None:
    found = driver(erasure(round=2, history=(1, 2), params={"participants": "policy"}))
    found.run()
    (ask,) = found.taken(AskClients)
    assert ask.clients is None and ask.num_clients == 2
    calibrations = [step for step in found.taken(Compute) if step.kernel == "calibrate_update"]
    assert [step.params["stored"] for step in calibrations] == [[digest("a2")], [digest("a2"), digest("b2")]]


def test_every_nth_round_is_walked_through_and_the_line_ends_where_it_was() -> None:
    found = driver(erasure(round=9, history=tuple(range(1, 10)), params={"interval": 3}))
    found.run()
    assert [step.round for step in found.taken(Recall)] == [1, 4, 7]
    assert [step.round for step in found.taken(Publish)] == [1, 4, 9]


def test_a_round_below_quorum_is_skipped_and_counted() -> None:
    def answer(ask: AskClients) -> tuple[UpdateRef, ...]:
        return () if ask.round == 3 else everybody(ask)

    found = driver(erasure(round=4, history=(1, 2, 3, 4)), answer=answer)
    end = found.run()
    assert end == Finish("rebuilt from 3 of 4 stored rounds, 1 skipped")
    assert [step.round for step in found.taken(Publish)] == [1, 2, 4]
    assert found.taken(Publish)[-1].metrics["num_skipped"] == 1


def test_when_the_last_round_is_skipped_the_line_still_ends_where_it_was() -> None:
    found = driver(erasure(round=3, history=(1, 2, 3)), answer=lambda ask: everybody(ask) if ask.round < 3 else ())
    assert isinstance(found.run(), Finish)
    published = found.taken(Publish)
    assert [step.round for step in published] == [1, 2, 3]
    assert published[2].digest == published[1].digest
    assert published[2].contributions == ()


def test_too_many_skipped_rounds_end_in_a_failure_that_says_what_to_do() -> None:
    found = driver(erasure(round=3, history=(1, 2, 3)), answer=lambda ask: ())
    end = found.run()
    assert isinstance(end, Abort) and "2 of 3 rounds" in end.reason and "retrain" in end.reason


def test_a_round_of_which_nothing_is_stored_any_more_is_skipped() -> None:
    found = driver(erasure(round=3, history=(1, 2, 3)), recall=lambda round: () if round == 2 else stored(round))
    assert found.run() == Finish("rebuilt from 2 of 3 stored rounds, 1 skipped")


@pytest.mark.parametrize("history", [(), (2, 3)])
def test_without_history_or_its_first_round_the_method_gives_up(history: tuple[int, ...]) -> None:
    found = driver(erasure(history=history))
    end = found.run()
    assert isinstance(end, Abort) and "retrain" in end.reason
    assert len(found.steps) == 1


def test_a_first_round_with_the_leaver_alone_cannot_be_rebuilt() -> None:
    end = driver(erasure(history=(1, 2)), recall=lambda round: ()).run()
    assert isinstance(end, Abort) and "round 1" in end.reason
