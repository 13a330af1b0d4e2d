"""What belongs to no method: the programs of topologies, and the kernels and kinds of tasks that every run uses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from services.audit.spec import Audit
from services.methods.description import ClientWork
from services.methods.references import Reference

PROGRAMS: Final[Mapping[str, Reference]] = {
    "profile": "services.topology.plan:ProfileProgram",
    "newcomer": "services.topology.plan:NewcomerProgram",
    "merge": "services.topology.plan:MergeProgram",
}
KERNELS: Final[Mapping[str, Reference]] = {
    "evaluate_model": "services.training.evaluation:evaluate_model",
    "init_model": "services.models.kernels:init_model",
    "knot_newcomer": "services.topology.newcomers:knot_newcomer",
    "knot_profile": "services.topology.kernels:knot_profile",
    "merge_models": "services.tensors.merge:merge_models",
    "spectral_newcomer": "services.topology.newcomers:spectral_newcomer",
    "spectral_profile": "services.topology.kernels:spectral_profile",
    "stack_models": "services.tensors.merge:stack_models",
    "weighted_step": "services.tensors.aggregate:weighted_step",
}
WORK_OF_RUNS: Final[Mapping[str, ClientWork]] = {
    "train": ClientWork("services.training.client:train"),
    "evaluate": ClientWork("services.training.client:evaluate", returns_update=False),
}
WORK_OF_AUDITS: Final[Mapping[str, ClientWork]] = {
    "audit": ClientWork("services.audit.client:carry_out", Audit, returns_update=False),
}
