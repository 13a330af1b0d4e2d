"""The server's side of training, shared by all algorithms: initialise, then ask, aggregate, judge, publish until the
stop rule holds. An algorithm adds two things: whom to ask (`ask`) and how much an update weighs (`weigh`).

A cluster never stops by its accuracy alone: the rule is the run's, and is about the best of its clusters."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import pstdev
from typing import Any, Literal, Protocol

from services.core.errors import InvariantBroken
from services.core.seeds import derive
from services.methods.catalogue import TRAINING
from services.methods.references import resolve
from services.program.contract import (
    AskClients,
    CohortView,
    Collected,
    Compute,
    Computed,
    Contribution,
    Finish,
    Outcome,
    Overruled,
    ProposeStop,
    Publish,
    Published,
    Source,
    Step,
    UpdateRef,
)
from services.training.judging import clients_figures, supported_accuracy
from services.wire.message import Id, Message
from services.wire.v1.runs import StopRule

EVALUATION_BATCH = 512


class StoredContribution(Message):
    update_id: Id
    client: str
    weight: float
    staleness: int
    digest: str = ""
    distance: float | None = None
    factor: float | None = None


class TrainingState(Message):
    """Where a training program stands; stored after every step."""

    phase: Literal[
        "initialising",
        "reinitialising",
        "asking",
        "aggregating",
        "measuring",
        "accumulating",
        "judging",
        "asking-to-judge",
        "publishing",
        "proposing",
        "finished",
    ]
    round: int
    """The newest published round; the work in hand makes the next one."""
    head: str | None = None
    candidate: str | None = None
    """The model just computed, not yet published."""
    contributions: list[StoredContribution] = []
    left_out: list[Id] = []
    """Updates that were taken, and that the candidate does not contain: they exceeded the run's bounds."""
    residuals: str | None = None
    figures: dict[str, float] = {}
    supported: float | None = None
    """The accuracy of the candidate that does not rest on one client's word."""
    accuracies: list[float] = []
    """Judged accuracies in order, as far back as the stop rule looks."""


class Algorithm(Protocol):
    @property
    def scale(self) -> float: ...

    @property
    def quantum(self) -> float | None:
        """What the weights of a new model are multiples of; None: they are not rounded."""
        ...

    def ask(self, view: CohortView, round: int, model: str) -> AskClients: ...

    def weigh(self, update: UpdateRef, round: int) -> tuple[float, int]:
        """The weight of an update in this round, and its staleness in server steps."""
        ...


def algorithm_of(view: CohortView) -> Algorithm:
    """The one that the run names, with the run's parameters."""
    spec = view.spec.training
    algorithm: Algorithm = resolve(TRAINING[spec.algorithm].algorithm)(spec)
    return algorithm


class RoundsProgram:
    """The program of algorithms that need nothing but these rounds."""

    state_type = TrainingState

    def start(self, view: CohortView) -> tuple[TrainingState, Step]:
        return start(view, algorithm_of(view))

    def resume(self, state: TrainingState, outcome: Outcome, view: CohortView) -> tuple[TrainingState, Step]:
        return resume(state, outcome, view, algorithm_of(view))


def start(view: CohortView, algorithm: Algorithm) -> tuple[TrainingState, Step]:
    if view.sources:
        state = TrainingState(phase="reinitialising", round=view.round)
        return state, merge_step(view.sources)
    if view.head is not None:
        state = TrainingState(phase="publishing", round=view.round, head=view.head)
        return _next_round(state, view, algorithm)
    state = TrainingState(phase="initialising", round=view.round)
    if view.spec.init is not None:
        return _publish(state.model_copy(update={"candidate": view.spec.init}), view, algorithm)
    params = {"model": view.spec.model.model_dump(), "seed": derive(view.spec.seed, "init")}
    return state, Compute("init_model", params, ())


def resume(
    state: TrainingState, outcome: Outcome, view: CohortView, algorithm: Algorithm
) -> tuple[TrainingState, Step]:
    match state.phase, outcome:
        case "initialising" | "reinitialising", Computed(digest=digest):
            return _judge(state.model_copy(update={"candidate": digest}), view, algorithm)
        case "asking", Collected(updates=updates):
            return _aggregate(state, updates, view, algorithm)
        case "aggregating", Computed(digest=digest, figures=figures):
            return _measure(_aggregated(state, digest, figures), view, algorithm)
        case "measuring", Computed(figures=figures):
            measured = [
                c.model_copy(update={"distance": figures.get(f"distance:{c.client}")}) for c in state.contributions
            ]
            return _accumulate(state.model_copy(update={"contributions": measured}), view, algorithm)
        case "accumulating", Computed(digest=digest):
            return _judge(state.model_copy(update={"residuals": digest}), view, algorithm)
        case "judging", Computed(figures=figures):
            judged = {f"validation_{name}": value for name, value in figures.items()}
            return _ask_to_judge(state.model_copy(update={"figures": {**state.figures, **judged}}), view, algorithm)
        case "asking-to-judge", Collected(updates=updates):
            supported = supported_accuracy(updates, is_alone=view.num_members == 1)
            figures = {**state.figures, **clients_figures(updates)}
            after = state.model_copy(update={"figures": figures, "supported": supported})
            return _publish(after, view, algorithm)
        case "publishing", Published():
            return _next_round(state, view, algorithm)
        case "proposing", Overruled():
            return _go_on(state, view, algorithm)
    raise InvariantBroken(f"training in phase {state.phase} cannot take {type(outcome).__name__}")


def _aggregate(
    state: TrainingState, updates: tuple[UpdateRef, ...], view: CohortView, algorithm: Algorithm
) -> tuple[TrainingState, Step]:
    if state.head is None:
        raise InvariantBroken("aggregation without a base model")
    if not updates:
        return _publish(state.model_copy(update={"candidate": state.head, "figures": {}}), view, algorithm)
    training = view.spec.training
    weighed = [(update, *algorithm.weigh(update, state.round + 1)) for update in updates]
    params = {
        "base": state.head,
        "updates": [{"digest": update.digest, "weight": weight} for update, weight, _ in weighed],
        "scale": algorithm.scale,
        **({"quantum": algorithm.quantum} if algorithm.quantum is not None else {}),
        "bounds": {"max_norm": training.max_update_norm, "large_updates": training.large_updates},
    }
    inputs = (state.head, *(update.digest for update in updates if update.digest is not None))
    contributions = [
        StoredContribution(
            update_id=update.update_id,
            client=update.client,
            weight=weight,
            staleness=staleness,
            digest=update.digest or "",
        )
        for update, weight, staleness in weighed
    ]
    after = state.model_copy(update={"phase": "aggregating", "contributions": contributions, "figures": {}})
    return after, Compute("weighted_step", params, inputs)


def _aggregated(state: TrainingState, digest: str | None, figures: Mapping[str, float]) -> TrainingState:
    """The state with what the kernel says of each update: whether it is in the model, and by which factor. Without any
    update in it, the model stays as it is."""
    used, left_out = [], []
    for place, contribution in enumerate(state.contributions):
        if f"left_out:{place}" in figures:
            left_out.append(contribution.update_id)
        else:
            used.append(contribution.model_copy(update={"factor": figures.get(f"factor:{place}")}))
    of_model = {name: value for name, value in figures.items() if ":" not in name}
    counts = {"num_left_out": len(left_out), "num_clipped": sum(c.factor is not None for c in used)}
    of_model |= {name: float(count) for name, count in counts.items() if count}
    candidate = digest if used else state.head
    changed = {"candidate": candidate, "figures": of_model, "contributions": used, "left_out": left_out}
    return state.model_copy(update=changed)


def _measure(state: TrainingState, view: CohortView, algorithm: Algorithm) -> tuple[TrainingState, Step]:
    """How far each client moved the model, where the run keeps that for a later erasure."""
    if not view.spec.history.distances or not state.contributions:
        return _accumulate(state, view, algorithm)
    return state.model_copy(update={"phase": "measuring"}), _over_updates("measure_distances", state, algorithm, {})


def _accumulate(state: TrainingState, view: CohortView, algorithm: Algorithm) -> tuple[TrainingState, Step]:
    if not view.spec.history.residuals or not state.contributions:
        return _judge(state, view, algorithm)
    step = _over_updates("accumulate_residuals", state, algorithm, {"residuals": view.residuals})
    return state.model_copy(update={"phase": "accumulating"}), step


def _over_updates(kernel: str, state: TrainingState, algorithm: Algorithm, given: dict[str, str | None]) -> Compute:
    updates = [
        {"client": c.client, "digest": c.digest, "weight": c.weight, "factor": c.factor} for c in state.contributions
    ]
    params = {"model": state.head, "updates": updates, "scale": algorithm.scale, **given}
    known = [digest for digest in (state.head, *given.values()) if digest is not None]
    return Compute(kernel, params, (*known, *(c.digest for c in state.contributions)))


def _is_judged(view: CohortView, round: int) -> bool:
    if view.is_part and not view.spec.validation.parts:
        return False
    return round % view.spec.validation.every == 0 or round == _last_round(view)


def _last_round(view: CohortView) -> int:
    return view.spec.stop.rounds + view.extra_rounds


def _making(state: TrainingState) -> int:
    """The round that the candidate will be; a re-initialised line keeps counting from where it was."""
    return state.round if state.head is None else state.round + 1


def _is_initial(state: TrainingState, view: CohortView) -> bool:
    """Whether the candidate was never trained; a line that joins later has such a model in a later round."""
    return state.head is None and not view.sources


def _judge(state: TrainingState, view: CohortView, algorithm: Algorithm) -> tuple[TrainingState, Step]:
    if state.candidate is None:
        raise InvariantBroken("a kernel that makes a model returned none")
    if view.spec.validation.data is None or not _is_judged(view, _making(state)):
        return _ask_to_judge(state, view, algorithm)
    return state.model_copy(update={"phase": "judging"}), evaluation_step(state.candidate, view)


def _ask_to_judge(state: TrainingState, view: CohortView, algorithm: Algorithm) -> tuple[TrainingState, Step]:
    making = _making(state)
    if not view.spec.validation.at_clients or _is_initial(state, view) or not _is_judged(view, making):
        return _publish(state, view, algorithm)
    if state.candidate is None:
        raise InvariantBroken("nothing to judge")
    ask = algorithm.ask(view, making, state.candidate)
    ask = AskClients("evaluate", making, state.candidate, ask.num_clients, ask.quorum, ask.deadline_s)
    return state.model_copy(update={"phase": "asking-to-judge"}), ask


def _publish(state: TrainingState, view: CohortView, algorithm: Algorithm) -> tuple[TrainingState, Step]:
    if state.candidate is None:
        raise InvariantBroken("nothing to publish")
    making = _making(state)
    accuracies = state.accuracies
    accuracy = state.figures.get("validation_accuracy", state.supported)
    if accuracy is not None and not _is_initial(state, view):
        accuracies = [*accuracies, accuracy][-view.spec.stop.window :]
    contributions = tuple(
        Contribution(c.update_id, c.client, c.weight, c.staleness, distance=c.distance, factor=c.factor)
        for c in state.contributions
    )
    after = TrainingState(phase="publishing", round=making, head=state.candidate, accuracies=accuracies)
    step = Publish(
        digest=state.candidate,
        round=making,
        kind="aggregate" if state.head is not None else "reinit" if view.sources else "init",
        contributions=contributions,
        sources=view.sources if state.head is None else (),
        scale=algorithm.scale,
        metrics=state.figures,
        residuals=state.residuals,
        left_out=tuple(state.left_out),
    )
    return after, step


def _next_round(state: TrainingState, view: CohortView, algorithm: Algorithm) -> tuple[TrainingState, Step]:
    if not is_met(view.spec.stop, state.accuracies):
        return _go_on(state, view, algorithm)
    if view.spec.topology.kind != "clusters":
        return state.model_copy(update={"phase": "finished"}), Finish(reached(state.accuracies[-1], state.round))
    if view.is_part:
        return _go_on(state, view, algorithm)
    proposal = ProposeStop(reached(state.accuracies[-1], state.round, view.name))
    return state.model_copy(update={"phase": "proposing"}), proposal


def is_met(stop: StopRule, accuracies: list[float]) -> bool:
    """Whether a line with these accuracies, the newest last, is good and steady enough."""
    if stop.accuracy is None or not accuracies or accuracies[-1] < stop.accuracy:
        return False
    return stop.max_std is None or (len(accuracies) >= stop.window and pstdev(accuracies) <= stop.max_std)


def reached(accuracy: float, number: int, line: str | None = None) -> str:
    """Why a line, or all lines by this one, stop."""
    return f"accuracy {accuracy:.4f} reached in round {number}" + (f" of {line}" if line is not None else "")


def accuracies_of(state: Mapping[str, Any] | None) -> list[float]:
    """The accuracies of a line, by the stored state of its program, as far back as the stop rule looks; the newest
    last."""
    training: Mapping[str, Any] = (state or {}).get("training", state) or {}
    return list(training.get("accuracies", ()))


def _go_on(state: TrainingState, view: CohortView, algorithm: Algorithm) -> tuple[TrainingState, Step]:
    if state.round >= _last_round(view):
        return state.model_copy(update={"phase": "finished"}), Finish(f"all {_last_round(view)} rounds done")
    if state.head is None:
        raise InvariantBroken("a round without a model")
    return state.model_copy(update={"phase": "asking"}), algorithm.ask(view, state.round + 1, state.head)


def evaluation_step(weights: str, view: CohortView) -> Compute:
    """Judge a model on the coordinator's own validation set."""
    data = view.spec.validation.data
    if data is None:
        raise InvariantBroken("there is no validation set to judge on")
    params = {"model": view.spec.model.model_dump(), "weights": weights, "data": data, "batch_size": EVALUATION_BATCH}
    return Compute("evaluate_model", params, (weights, data))


def merge_step(sources: tuple[Source, ...]) -> Compute:
    """The mean of models, weighted by the samples behind them."""
    models = [{"digest": source.digest, "weight": source.weight} for source in sources]
    return Compute("merge_models", {"models": models}, tuple(source.digest for source in sources))
