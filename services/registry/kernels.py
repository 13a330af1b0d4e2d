"""Every kernel by name: maths that the compute role runs over stored blobs.

A kernel takes its parameters, what is stored under its input digests and a writer for the model it makes, if it makes
one, and returns figures. Equal inputs give equal bytes. It raises `KernelFailed` when its inputs give no result.
Kernels are named here and imported when first run, so that a process that only coordinates never imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final

from services.tensors.streams import Stored, Writable

Kernel = Callable[[dict[str, Any], Mapping[str, Stored], Writable], dict[str, float]]

KERNELS: Final[dict[str, str]] = {
    "accumulate_residuals": "services.unlearning.fedrecovery.kernels:accumulate_residuals",
    "add_gaussian_noise": "services.unlearning.sifu.kernels:add_gaussian_noise",
    "calibrate_update": "services.unlearning.federaser.kernels:calibrate_update",
    "canary_success": "services.audit.predictions:canary_success",
    "init_model": "services.models.kernels:init_model",
    "knot_profile": "services.topology.kernels:knot_profile",
    "measure_distances": "services.unlearning.sifu.kernels:measure_distances",
    "knot_newcomer": "services.topology.newcomers:knot_newcomer",
    "merge_models": "services.tensors.merge:merge_models",
    "negate_layers": "services.unlearning.negation.kernels:negate_layers",
    "pga_radius": "services.unlearning.pga.kernels:pga_radius",
    "pga_reference": "services.unlearning.pga.kernels:pga_reference",
    "remove_residuals": "services.unlearning.fedrecovery.kernels:remove_residuals",
    "spectral_profile": "services.topology.kernels:spectral_profile",
    "spectral_newcomer": "services.topology.newcomers:spectral_newcomer",
    "stack_models": "services.tensors.merge:stack_models",
    "weighted_step": "services.tensors.aggregate:weighted_step",
    "evaluate_model": "services.training.evaluation:evaluate_model",
}


def run_kernel(name: str, params: dict[str, Any], inputs: Mapping[str, Stored], out: Writable) -> dict[str, float]:
    module, _, function = KERNELS[name].partition(":")
    kernel: Kernel = getattr(import_module(module), function)
    return kernel(params, inputs, out)
