"""From names to code: programs for the engine, kernels for compute, the schedule of a recovery for the claim."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final

from services.core.errors import InvariantBroken
from services.methods.catalogue import KERNELS, PROGRAMS, SELECTION, UNLEARNING
from services.methods.description import Unlearning
from services.methods.references import resolve
from services.program.contract import Program
from services.tensors.streams import Stored, Writable
from services.training.local_spec import LocalTraining
from services.wire.v1.runs import ModelSpec

Kernel = Callable[[dict[str, Any], Mapping[str, Stored], Writable], dict[str, float]]
"""Takes its parameters, what is stored under its input digests and a writer for the model that it makes, if it makes
one, and returns figures. Equal inputs give equal bytes. It raises `KernelFailed` when its inputs give no result."""

UNNAMED_SCHEDULE: Final = "rapid"
"""Recoveries that were stored before schedules had names are this method's."""


@cache
def program_named(name: str) -> Program[Any]:
    if name not in PROGRAMS:
        raise InvariantBroken(f"no program is called {name}: the package that brought it is not installed here")
    program: Program[Any] = resolve(PROGRAMS[name])()
    return program


Draw = Callable[[Sequence[str], int, int, int], list[str]]
"""Takes the candidates, how many of them, a seed and the round; returns min(k, candidates) names in name order."""


@cache
def draw_named(policy: str) -> Draw | None:
    """How a policy draws from names; None where its kernel has to put them in order."""
    place = SELECTION[policy].draw
    draw: Draw | None = None if place is None else resolve(place)
    return draw


def run_kernel(name: str, params: dict[str, Any], inputs: Mapping[str, Stored], out: Writable) -> dict[str, float]:
    if name not in KERNELS:
        raise InvariantBroken(f"no kernel is called {name}: the package that brought it is not installed here")
    kernel: Kernel = resolve(KERNELS[name])
    return kernel(params, inputs, out)


def objection(method: Unlearning, params: Mapping[str, Any], model: ModelSpec) -> str | None:
    """Why the method cannot forget in a run with this model what the parameters ask for; None: it can."""
    if method.objection is None:
        return None
    reason: str | None = resolve(method.objection)(params, model)
    return reason


def local_training(own: LocalTraining, method: str, params: Mapping[str, Any], number: int) -> LocalTraining:
    """How clients train in round `number`, counted from 1, of a recovery by the method's own schedule; as the run does
    when the method has none."""
    found = UNLEARNING.get(method)
    if found is None or found.local_training is None:
        return own
    trained: LocalTraining = resolve(found.local_training)(own, params, number)
    return trained
