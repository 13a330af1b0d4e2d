"""What a description must be before anything is derived from it."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from services.core.errors import InvariantBroken
from services.methods.description import ClientWork, Recovery, TaskParameters, Training, Unlearning
from services.methods.running import local_training, program_named
from services.training.algorithm_spec import AlgorithmSpec
from services.training.local_spec import LocalTraining
from services.wire.message import Message


class Hop(TaskParameters):
    kind: Literal["hop"] = "hop"


class Plain(AlgorithmSpec):
    algorithm: Literal["plain"]


def unlearning(**changes: Any) -> Unlearning:
    given: dict[str, Any] = {"name": "mine", "summary": "-", "guarantee": "approximate", "program": "mine.plan:Mine"}
    return Unlearning(**(given | changes))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"name": "My Method"}, "cannot be the name"),
        ({"program": "mine.plan.Mine"}, "module:name"),
        ({"kernels": {"turn": "mine kernels:turn"}}, "module:name"),
        ({"local_training": ":schedule"}, "module:name"),
        ({"noisy_kernels": ("turn",)}, "does not have: turn"),
        ({"guarantee": "exact"}, "exact ones have none"),
        ({"program": None}, "approximate methods have a program"),
        ({"client_work": {"jump": ClientWork("mine.client:jump", Hop)}}, "kind: Literal\\['jump'\\]"),
    ],
)
def test_an_impossible_description_is_refused_where_it_is_made(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        unlearning(**changes)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"program": "mine.plan:Mine"}, "no program, and at most one kind"),
        ({"client_work": {name: ClientWork(f"mine.client:{name}") for name in ("hop", "jump")}}, "at most one kind"),
        ({"class_parameter": "skewed_class"}, "no parameter skewed_class"),
        ({"preparation": "epochs"}, "no parameter epochs"),
    ],
)
def test_an_impossible_recovery_is_refused_where_it_is_made(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Recovery(name="mine", summary="-", **changes)


def test_a_recovery_says_what_its_clients_prepare() -> None:
    from services.recovery.imba_ulrc.description import METHOD

    assert METHOD.preparation_epochs({}) == 200 and METHOD.preparation_epochs({"encoder_epochs": 7}) == 7
    assert Recovery(name="mine", summary="-").preparation_epochs({}) == 0


@pytest.mark.parametrize("spec", [Message, AlgorithmSpec, Plain])
def test_parameters_of_an_algorithm_carry_its_name(spec: type[Any]) -> None:
    with pytest.raises(ValueError, match=r"AlgorithmSpec|Literal"):
        Training(name="fancy", summary="-", spec=spec, algorithm="mine.plan:Fancy")


def test_an_algorithm_trains_in_the_shared_rounds_unless_it_has_a_program() -> None:
    plain = Training(name="plain", summary="-", spec=Plain, algorithm="mine.plan:Plain")
    own = Training(name="plain", summary="-", spec=Plain, algorithm="mine.plan:Plain", program="mine.plan:Program")
    assert plain.program == Training.program and Training.program in plain.references
    assert own.program == "mine.plan:Program" and own.program in own.references


def test_only_a_method_with_such_a_parameter_strides_through_the_history() -> None:
    assert unlearning(stride_parameter="every").stride({"every": 3}) == 3
    assert unlearning(stride_parameter="every").stride({}) == 1
    assert unlearning().stride({"every": 3}) == 1


def test_clients_train_as_the_run_does_where_a_method_has_no_schedule_or_is_gone() -> None:
    own = LocalTraining()
    for method in ("retrain", "gone"):
        assert local_training(own, method, {}, 1) is own


def test_a_program_whose_package_is_gone_is_named() -> None:
    with pytest.raises(InvariantBroken, match="gone"):
        program_named("gone")
