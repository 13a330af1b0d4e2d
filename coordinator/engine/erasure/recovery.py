"""The stage in which a cohort recovers: it trains until it has the round again that it had, and as long as is granted.

The rounds are those of the run's own training. What clients do in them is said when they claim: as the run does, by
the schedule of the unlearning method (`local_training`), or the task of a recovery method (`task_of`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pydantic import ValidationError

from coordinator.engine.erasure.stages import Recover, RecoveryWanted
from services.core.errors import InvariantBroken, Rejected
from services.core.seeds import derive
from services.methods import running
from services.methods.catalogue import PLAIN, RECOVERY, UNLEARNING
from services.methods.description import TaskParameters
from services.models.spec import CUSTOM, params_of
from services.training.local_spec import LocalTraining
from services.wire.v1.runs import RunSpec

if TYPE_CHECKING:
    from coordinator.engine.entities import Cohort, Erasure, Run


def retraining(
    erasure: Erasure, method: str | None, run: Run, until_round: int, num_rounds: int, before: str | None
) -> Recover:
    """How a cohort recovers that is rolled back: to the round of the fence, by the schedule of the method if there is
    one and it has one; then so many rounds of the recovery that the request asks for. `before`: the model at the
    fence."""
    again = Recover(until_round)
    if method is not None and UNLEARNING[method].local_training is not None:
        again = Recover(until_round, method, dict(erasure.params))
    if erasure.recovery is None or num_rounds == 0:
        return again
    return replace(again, then=stage(erasure.recovery, run, until_round, num_rounds, before).begun(until_round))


def extra_rounds(recovery: Recover, run: Run, cohort: Cohort) -> int:
    """Rounds beyond the run's stop rule that a cohort has to be granted for its recovery."""
    return max(0, recovery.last_round - run.spec.stop.rounds - cohort.extra_rounds)


def stage(wanted: RecoveryWanted | None, run: Run, from_round: int, num_rounds: int, before: str | None) -> Recover:
    """The stage of a recovery of so many rounds. Where its class is to be found and cannot be, clients train as they
    always do."""
    plain = Recover(from_round, num_rounds=num_rounds)
    if wanted is None or wanted.method not in RECOVERY:
        return plain
    chosen = replace(plain, method=wanted.method, params=dict(wanted.params))
    if not finds_class(wanted):
        return chosen
    return replace(chosen, compared_with=before) if before is not None and can_find_class(run.spec) else plain


def check(wanted: RecoveryWanted, runs: list[Run], *, can_compare: bool = True) -> None:
    """A recovery that is asked for is known, fits its parameters, and can be carried out in these runs. Raises
    `Rejected`."""
    method = RECOVERY.get(wanted.method)
    if method is None:
        raise Rejected("method-unavailable", f"no recovery is called {wanted.method}; known are {', '.join(RECOVERY)}")
    try:
        method.spec.model_validate(wanted.params)
    except ValidationError as error:
        where = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()[:3])
        raise Rejected("invalid-request", f"recovery.params do not fit the method: {where}") from None
    name = method.class_parameter
    if name is None:
        return
    for run in sorted(runs, key=lambda run: run.name):
        known = None if run.spec.model.name == CUSTOM else params_of(run.spec.model).num_classes
        given = wanted.params.get(name)
        if given is not None and known is not None and given >= known:
            detail = f"recovery.params.{name} is {given}, and run {run.name} has the classes 0 to {known - 1}"
            raise Rejected("invalid-request", detail)
        if given is None and not (can_compare and can_find_class(run.spec)):
            lacks = "no validation set of its own (validation.data)" if can_compare else "nothing to compare with"
            detail = f"{wanted.method} cannot find the class that lost most: run {run.name} has {lacks}"
            raise Rejected("method-unavailable", f"{detail}; say which class it is, as recovery.params.{name}")


def finds_class(wanted: RecoveryWanted) -> bool:
    """Whether the server has to find the class that it is about."""
    name = RECOVERY[wanted.method].class_parameter if wanted.method in RECOVERY else None
    return name is not None and wanted.params.get(name) is None


def can_find_class(spec: RunSpec) -> bool:
    return spec.validation.data is not None and spec.model.name != CUSTOM


def with_class(cohort: Cohort, found: int | None) -> Recover:
    """The cohort's recovery, once it is known which class lost most; plain where none did."""
    recovery, current = cohort.recovery, cohort.recovering
    if recovery is None or current is None:
        raise InvariantBroken(f"cohort {cohort.id} looks for a class, and does not recover")
    method = RECOVERY.get(current.method)
    known = Recover(current.until_round, from_round=current.from_round, num_rounds=current.num_rounds)
    if found is not None and method is not None and method.class_parameter is not None:
        params = {**current.params, method.class_parameter: found}
        known = replace(known, method=current.method, params=params, found_class=found)
    return known if current is recovery else replace(recovery, then=known)


def local_training(own: LocalTraining, recovery: Recover | None, round: int) -> LocalTraining:
    """How clients train for this round of a cohort with this recovery; `own`: the run's own way."""
    current = recovery.at(round) if recovery is not None else None
    if current is None or current.method == PLAIN:
        return own
    return running.local_training(own, current.method, current.params, round - current.from_round)


def task_of(run: Run, cohort: Cohort, round: int) -> tuple[str, TaskParameters] | None:
    """The kind of task, with its parameters, that takes the place of training in this round; None: there is none."""
    current = cohort.recovery.at(round) if cohort.recovery is not None and cohort.unlearning is None else None
    method = RECOVERY.get(current.method) if current is not None else None
    if current is None or method is None or method.task_kind is None:
        return None
    told = {
        "kind": method.task_kind,
        "recovery": f"{cohort.id}-{cohort.epoch}-{current.from_round}",
        "seed": derive(run.spec.seed, "recovery", cohort.name, current.from_round),
        "number": round - current.from_round,
        "num_rounds": current.until_round - current.from_round,
    }
    parameters = method.client_work[method.task_kind].parameters
    if parameters is None:
        raise InvariantBroken(f"the task of {method.name} has no parameters")
    return method.task_kind, parameters.model_validate({**current.params, **told})


def most_samples(cohort: Cohort, round: int) -> float:
    """The factor by which the samples that a client trains on in this round may exceed those that it has."""
    current = cohort.recovery.at(round) if cohort.recovery is not None else None
    method = RECOVERY.get(current.method) if current is not None else None
    return 1.0 if method is None else method.most_samples
