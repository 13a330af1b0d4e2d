"""What Exact-Fun is."""

from __future__ import annotations

from typing import Final

from services.methods.description import Training
from services.training.exact_fun.spec import ExactFun

METHOD: Final = Training(
    name="exact_fun",
    summary="models rounded to a grid; after an erasure, rounds that come out the same stand",
    spec=ExactFun,
    algorithm="services.training.exact_fun.plan:Quantising",
    program="services.training.exact_fun.plan:ExactFunProgram",
    walks_its_history=True,
)
