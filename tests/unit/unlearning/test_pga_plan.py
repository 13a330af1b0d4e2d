from __future__ import annotations

from typing import Any

from services.program.contract import Abort, AskClients, Compute, Erasure, Finish, Participant, Publish
from services.unlearning.pga.plan import PgaProgram
from services.unlearning.pga.spec import Ascend
from services.wire.v1.runs import ModelSpec
from tests.support.program_driver import BASE, HEAD, SPEC, Driver, digest, erasure, update, view

PARTICIPANTS = (Participant("a", digest("da"), 0.7), Participant("u", digest("du"), 0.3))


def driver(erased: Erasure, **given: Any) -> Driver:
    answered = {"answer": lambda ask: (update("u", "climbed", forgotten_accuracy=0.1, distance=2.0),)}
    return Driver(PgaProgram(), view(erased), **{**answered, "figures": {"pga_radius": {"radius": 4.5}}, **given})


def test_the_leaver_climbs_from_the_model_without_its_last_update_inside_the_measured_ball() -> None:
    found = driver(erasure(base=BASE, participants=PARTICIPANTS))
    assert isinstance(found.run(), Finish)
    reference, radius, step = found.taken(Compute)
    assert (reference.kernel, radius.kernel, step.kernel) == ("pga_reference", "pga_radius", "weighted_step")
    assert reference.params["leavers"] == [{"digest": digest("du"), "share": 0.3}]
    (ask,) = found.taken(AskClients)
    assert ask.num_clients == 0 and [task.client for task in ask.leavers] == ["u"]
    work = ask.leavers[0].work
    assert isinstance(work, Ascend) and work.radius == 4.5 and work.stop_accuracy == 0.2  # one of five classes
    (published,) = found.taken(Publish)
    assert published.round == ask.round == 10
    assert published.metrics["forgotten_accuracy"] == 0.1


def test_a_leaver_that_was_not_in_the_last_round_climbs_from_the_head_itself() -> None:
    found = driver(erasure(participants=PARTICIPANTS[:1]))
    found.run()
    assert found.taken(AskClients)[0].model == HEAD


def test_an_absent_or_failed_leaver_ends_in_a_failure() -> None:
    end = driver(erasure(), answer=lambda ask: ()).run()
    assert isinstance(end, Abort) and "u" in end.reason and "online" in end.reason


def test_one_of_two_leavers_is_not_enough() -> None:
    assert isinstance(driver(erasure(leavers=("u", "v"))).run(), Abort)


def test_without_the_stored_update_there_is_no_reference() -> None:
    lost = (Participant("u", None, 0.3),)
    assert isinstance(driver(erasure(base=BASE, participants=lost)).run(), Abort)
    assert isinstance(driver(erasure(base=None, participants=PARTICIPANTS)).run(), Abort)


def test_a_custom_model_needs_radius_and_stop_accuracy_in_the_request() -> None:
    spec = SPEC.model_copy(update={"model": ModelSpec(name="custom")})
    assert isinstance(Driver(PgaProgram(), view(erasure(), spec=spec)).run(), Abort)
    given = erasure(params={"radius": 2.0, "stop_accuracy": 0.1})
    found = Driver(PgaProgram(), view(given, spec=spec), answer=lambda ask: (update("u"),))
    assert isinstance(found.run(), Finish)
    assert "pga_radius" not in [step.kernel for step in found.taken(Compute)]
