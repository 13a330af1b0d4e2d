"""What a noisy kernel was told must not outlive the erasure; the purge goes by what its method declares."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from types import CodeType
from typing import Any

from services.methods.catalogue import KERNELS, METHODS, NOISY_KERNELS


def constants(code: CodeType) -> Iterator[Any]:
    for constant in code.co_consts:
        yield constant
        if isinstance(constant, CodeType):
            yield from constants(constant)


def reads_a_seed(place: str) -> bool:
    module, _, function = place.partition(":")
    return "seed" in constants(getattr(import_module(module), function).__code__)


def test_every_kernel_of_a_method_that_reads_a_seed_is_declared_as_noisy_beside_it() -> None:
    of_methods = {name: place for name, place in KERNELS.items() if place.startswith("services.unlearning.")}
    noisy = {name for name, place in of_methods.items() if reads_a_seed(place)}
    assert noisy == NOISY_KERNELS
    for method in METHODS.values():
        folder = method.spec.__module__.rpartition(".")[0]
        assert all(of_methods[name].startswith(f"{folder}.") for name in method.noisy_kernels)
