"""A scripted driver: takes a program's steps with hand-made outcomes, and stores its state as JSON after each step."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from services.program.contract import (
    Abort,
    AskClients,
    CohortView,
    Collected,
    Compute,
    Computed,
    Erasure,
    Finish,
    Program,
    Publish,
    Published,
    Recall,
    Recalled,
    Step,
    UpdateRef,
)
from services.training.local_spec import LocalTraining
from services.wire.v1.runs import ModelSpec, RunSpec, Validation


def digest(name: str) -> str:
    return "sha256:" + name.encode().hex().rjust(64, "0")[-64:]


HEAD, INITIAL, BASE = digest("head"), digest("initial"), digest("base")
SPEC = RunSpec(
    name="run",
    model=ModelSpec(name="mlp", params={"input_shape": [4], "num_classes": 5}),
    local=LocalTraining(epochs=5),
)


def view(erasure: Erasure, *, num_members: int = 3, validated: bool = False, spec: RunSpec = SPEC) -> CohortView:
    if validated:
        spec = spec.model_copy(update={"validation": Validation(data=digest("data"))})
    return CohortView("all", num_members, num_members + 1, spec, None, 0, erasure=erasure)


def erasure(**changed: Any) -> Erasure:
    given: dict[str, Any] = {
        "leavers": ("u",),
        "params": {},
        "seed": 7,
        "initial": INITIAL,
        "head": HEAD,
        "round": 9,
    }
    return Erasure(**{**given, **changed})


def update(client: str, name: str = "", num_samples: int = 10, **metrics: float) -> UpdateRef:
    label = name or client
    return UpdateRef(UUID(int=sum(label.encode())), client, digest(label), num_samples, 0, metrics)


@dataclass
class Driver:
    """`recall` and `answer` say what history and clients give; kernels give a digest of their name and a counter."""

    program: Program[Any]
    view: CohortView
    recall: Callable[[int], tuple[UpdateRef, ...]] = lambda round: ()
    answer: Callable[[AskClients], tuple[UpdateRef, ...]] = lambda ask: ()
    figures: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)

    def run(self, limit: int = 500) -> Finish | Abort:
        state, step = self.program.start(self.view)
        while len(self.steps) < limit:
            self.steps.append(step)
            if isinstance(step, Finish | Abort):
                return step
            state = self.program.state_type.model_validate(json.loads(state.model_dump_json()))
            state, step = self.program.resume(state, self._outcome(step), self.view)
        raise AssertionError(f"no end after {limit} steps")

    def _outcome(self, step: Step) -> Any:
        match step:
            case Recall(round=round):
                return Recalled(self.recall(round))
            case AskClients():
                return Collected(self.answer(step))
            case Publish():
                return Published()
            case Compute(kernel=kernel):
                made = digest(f"{kernel}-{len(self.steps)}")
                return Computed(None if kernel == "evaluate_model" else made, self.figures.get(kernel, {}))
        raise AssertionError(f"the driver does not know {step}")

    def taken(self, kind: type[Any]) -> list[Any]:
        return [step for step in self.steps if isinstance(step, kind)]
