from __future__ import annotations

from typing import Any

import pytest

from services.program.contract import Abort, AskClients, Compute, Finish, Publish, UpdateRef
from services.training.local_spec import LocalTraining
from services.unlearning.fedforget.plan import FedForgetProgram, weigh
from services.unlearning.fedforget.spec import Distil, FedForget
from services.wire.v1.runs import RunSpec
from tests.support.program_driver import HEAD, SPEC, Driver, digest, erasure, update, view


def everybody(ask: AskClients) -> tuple[UpdateRef, ...]:
    others = ("a", "b") if ask.num_clients else ()
    return tuple(update(name, f"{name}{ask.round}", forgotten_accuracy=0.8) for name in (*others, "u"))


def driver(params: dict[str, Any], *, validated: bool = False, **given: Any) -> Driver:
    return Driver(
        FedForgetProgram(), view(erasure(params=params), validated=validated), **{"answer": everybody, **given}
    )


def test_all_rounds_start_from_the_newest_model_and_only_the_last_is_published() -> None:
    found = driver({"rounds": 3})
    assert isinstance(found.run(), Finish)
    asks = found.taken(AskClients)
    assert [ask.round for ask in asks] == [10, 11, 12]
    assert asks[0].model == HEAD and len({ask.model for ask in asks}) == 3
    (published,) = found.taken(Publish)
    assert published.round == 12
    assert [c.client for c in published.contributions] == ["a", "b", "u"]


def test_whoever_took_part_in_any_round_is_in_the_published_models_lineage() -> None:
    def one_in_turn(ask: AskClients) -> tuple[UpdateRef, ...]:
        return tuple(update(name, f"{name}{ask.round}") for name in (("a", "b")[ask.round % 2], "u"))

    found = driver({"rounds": 2}, answer=one_in_turn)
    assert isinstance(found.run(), Finish)
    (published,) = found.taken(Publish)
    assert [c.client for c in published.contributions] == ["a", "b", "u"]


def test_the_leaver_distils_while_the_others_train() -> None:
    found = driver({"rounds": 1})
    found.run()
    (ask,) = found.taken(AskClients)
    assert ask.kind == "train" and ask.num_clients == 3
    (task,) = ask.leavers
    work = task.work
    assert task.kind == "distil" and isinstance(work, Distil)
    assert (work.teacher_a, work.teacher_b, work.teacher) == (HEAD, None, "quasi_competent")
    assert work.local == LocalTraining(epochs=5, clip_norm=5.0)  # as the run trains, and clipped


def test_with_teacher_b_the_leavers_own_model_is_made_first() -> None:
    found = driver({"preset": "paper", "rounds": 1})
    found.run()
    first, second = found.taken(AskClients)
    assert (first.num_clients, first.leavers[0].kind, first.round, second.round) == (0, "train", 10, 11)
    own = found.taken(Compute)[0]
    assert own.params == {"base": HEAD, "updates": [{"digest": digest("u10"), "weight": 1.0}], "scale": 1.0}
    work = second.leavers[0].work
    assert isinstance(work, Distil) and work.teacher == "global" and work.alpha == 0.93
    assert work.teacher_b is not None and work.teacher_b != HEAD


def test_the_weights_of_a_round_are_the_samples_and_the_leavers_times_lambda() -> None:
    found = driver({"rounds": 2, "lambda_0": 2.0})
    found.run()
    steps = [step for step in found.taken(Compute) if step.kernel == "weighted_step"]
    weights = [[u["weight"] for u in step.params["updates"]] for step in steps]
    assert weights[0] == [10, 10, 20]
    assert weights[1] == [10, 10, pytest.approx(10 * (1 + 10**-0.5))]


def test_the_leavers_share_is_capped() -> None:
    updates = [update("a", num_samples=10), update("u", num_samples=90)]
    assert weigh(updates, ["u"], FedForget(), 0) == pytest.approx([10, 10])
    assert weigh(updates, ["u"], FedForget(max_share=0.25), 0) == pytest.approx([10, 10 / 3])


def test_it_stops_early_once_the_leavers_accuracy_is_that_of_strangers() -> None:
    found = driver({"rounds": 10, "early_stop": True}, validated=True, figures={"evaluate_model": {"accuracy": 0.85}})
    end = found.run()
    assert isinstance(end, Finish) and "forgot in 1 rounds" in end.reason
    assert len(found.taken(AskClients)) == 2
    assert found.taken(Publish)[0].metrics["forgotten_accuracy"] == 0.8


def test_it_never_stops_early_on_the_report_about_the_contaminated_head() -> None:
    found = driver({"rounds": 2, "early_stop": True}, validated=True, figures={"evaluate_model": {"accuracy": 0.1}})
    found.run()
    assert len(found.taken(AskClients)) == 2


def test_it_does_all_rounds_unless_told_to_stop_early() -> None:
    found = driver({"rounds": 3}, validated=True, figures={"evaluate_model": {"accuracy": 0.85}})
    found.run()
    assert len(found.taken(AskClients)) == 3
    assert not [step for step in found.taken(Compute) if step.kernel == "evaluate_model"]


def test_rounds_without_the_leaver_are_void_and_too_many_of_them_end_in_a_failure() -> None:
    def away(ask: AskClients) -> tuple[UpdateRef, ...]:
        return everybody(ask)[:2]

    found = driver({"rounds": 2, "max_missed": 2}, answer=away)
    end = found.run()
    assert isinstance(end, Abort) and "u" in end.reason
    assert len(found.taken(AskClients)) == 3
    assert not found.taken(Compute)

    found = driver({"rounds": 2}, answer=lambda ask: away(ask) if ask.round == 11 else everybody(ask))
    assert isinstance(found.run(), Finish)
    assert found.taken(Publish)[0].metrics["num_missed"] == 1


def test_a_leaver_that_is_offline_from_the_start_has_no_teacher() -> None:
    assert isinstance(driver({"teacher_b": True}, answer=lambda ask: ()).run(), Abort)


def test_a_preset_gives_way_to_what_the_request_names() -> None:
    spec = FedForget.model_validate({"preset": "paper", "alpha": 0.5})
    assert (spec.alpha, spec.lambda_neg, spec.teacher_b) == (0.5, 3.5, True)
    assert (spec.lambda_0, spec.rounds, spec.local(LocalTraining()).learning_rate) == (2.0, 10, 0.01)
    assert FedForget().teacher == "quasi_competent"


@pytest.mark.parametrize(
    ("training", "num_clients", "scale"),
    [
        ({"algorithm": "fats", "clients_per_round": 2}, 2, 1.0),
        ({"algorithm": "fedavg", "clients_per_round": 1, "server_learning_rate": 0.5}, 1, 0.5),
        ({"algorithm": "fedbuff", "buffer_size": 1, "concurrency": 1, "server_learning_rate": 2.0}, 3, 2.0),
        ({"algorithm": "exact_fun"}, 3, 1.0),
    ],
)
def test_a_method_asks_and_steps_as_the_runs_own_algorithm_does(
    training: dict[str, Any], num_clients: int, scale: float
) -> None:
    spec = RunSpec.model_validate({**SPEC.model_dump(), "training": training})
    found = Driver(FedForgetProgram(), view(erasure(params={"rounds": 1}), spec=spec), answer=everybody)
    found.run()
    assert found.taken(AskClients)[0].num_clients == num_clients
    assert found.taken(Publish)[0].scale == scale
