"""From names to code: programs for the engine, kernels for compute, the schedule of a recovery for the claim."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

from services.core.errors import InvariantBroken
from services.methods.catalogue import KERNELS, PROGRAMS, UNLEARNING
from services.methods.references import resolve
from services.program.contract import Program
from services.tensors.streams import Stored, Writable
from services.training.local_spec import LocalTraining

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


def run_kernel(name: str, params: dict[str, Any], inputs: Mapping[str, Stored], out: Writable) -> dict[str, float]:
    if name not in KERNELS:
        raise InvariantBroken(f"no kernel is called {name}: the package that brought it is not installed here")
    kernel: Kernel = resolve(KERNELS[name])
    return kernel(params, inputs, out)


def local_training(own: LocalTraining, method: str, params: Mapping[str, Any], number: int) -> LocalTraining:
    """How clients train in round `number`, counted from 1, of a recovery by the method's own schedule; as the run does
    when the method has none."""
    found = UNLEARNING.get(method)
    if found is None or found.local_training is None:
        return own
    trained: LocalTraining = resolve(found.local_training)(own, params, number)
    return trained
