"""Every method that this process knows, and what is looked up by name: all of it derived from descriptions.

To add a method to Lethe, make its folder and add one line to `BUILT_IN`. A method of another package needs no line
here: it is found by its entry point (`installed.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Final

from services.methods import shared
from services.methods.description import ClientWork, Description, Recovery, Selection, Training, Unlearning
from services.methods.installed import LeftOut, Package, find_installed, names_of
from services.methods.references import Reference, resolve

BUILT_IN: Final[tuple[Reference, ...]] = (
    "services.training.fedavg.description:METHOD",
    "services.training.fedbuff.description:METHOD",
    "services.training.fats.description:METHOD",
    "services.training.exact_fun.description:METHOD",
    "services.selection.uniform.description:METHOD",
    "services.selection.round_robin.description:METHOD",
    "services.selection.k_center.description:METHOD",
    "services.selection.clusters.description:METHOD",
    "services.selection.dqn.description:METHOD",
    "services.unlearning.retrain.description:METHOD",
    "services.unlearning.reinit.description:METHOD",
    "services.unlearning.rapid.description:METHOD",
    "services.unlearning.federaser.description:METHOD",
    "services.unlearning.pga.description:METHOD",
    "services.unlearning.fedforget.description:METHOD",
    "services.unlearning.negation.description:METHOD",
    "services.unlearning.fudp.description:METHOD",
    "services.unlearning.sifu.description:METHOD",
    "services.unlearning.fedrecovery.description:METHOD",
    "services.recovery.plain.description:METHOD",
    "services.recovery.imba_ulrc.description:METHOD",
    "services.recovery.fedrs.description:METHOD",
    "services.recovery.moon.description:METHOD",
    "services.recovery.quickdrop.description:METHOD",
)
"""The places of our own descriptions. Among methods that cost the same the planner takes the first."""
AUTO: Final = "auto"
"""Stands for the cheapest method, in place of a name in a request."""
PLAIN: Final = "plain"
"""The recovery of requests that name none: clients train as they always do."""

_OURS: Final[list[Description]] = [resolve(reference) for reference in BUILT_IN]
_TAKEN: Final = {
    *(f"method {name}" for name in (AUTO, *shared.PROGRAMS)),
    *(f"kernel {name}" for name in shared.KERNELS),
    *(f"kind of task {kind}" for kind in (*shared.WORK_OF_RUNS, *shared.WORK_OF_AUDITS)),
}
_FOUND, _LEFT_OUT = find_installed(_TAKEN.union(*map(names_of, _OURS)))
_PACKAGES: Final = {one.description.name: one.package for one in _FOUND}

LEFT_OUT: Final[tuple[LeftOut, ...]] = tuple(_LEFT_OUT)
METHODS: Final[Mapping[str, Description]] = {
    method.name: method for method in (*_OURS, *(one.description for one in _FOUND))
}
TRAINING: Final = {name: method for name, method in METHODS.items() if isinstance(method, Training)}
SELECTION: Final = {name: method for name, method in METHODS.items() if isinstance(method, Selection)}
UNLEARNING: Final = {name: method for name, method in METHODS.items() if isinstance(method, Unlearning)}
RECOVERY: Final = {name: method for name, method in METHODS.items() if isinstance(method, Recovery)}

PROGRAMS: Final[Mapping[str, Reference]] = {
    **shared.PROGRAMS,
    **{name: method.program for name, method in METHODS.items() if method.program is not None},
}
KERNELS: Final[Mapping[str, Reference]] = {
    **shared.KERNELS,
    **{name: place for method in METHODS.values() for name, place in method.kernels.items()},
}
NOISY_KERNELS: Final = frozenset(kernel for method in METHODS.values() for kernel in method.noisy_kernels)
CLIENT_WORK: Final[Mapping[str, ClientWork]] = {
    **shared.WORK_OF_RUNS,
    **{kind: work for method in METHODS.values() for kind, work in method.client_work.items()},
    **shared.WORK_OF_AUDITS,
}
WALK_THEIR_HISTORY: Final = frozenset(name for name, method in TRAINING.items() if method.walks_its_history)


def package_of(method: str) -> Package | None:
    """Where a method comes from; None when it is not installed here (any more)."""
    if method not in METHODS:
        return None
    return _PACKAGES.get(method) or Package("lethe", version("lethe"))
