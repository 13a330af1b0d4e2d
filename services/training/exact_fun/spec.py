"""Parameters of Exact-Fun."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from services.training.algorithm_spec import AlgorithmSpec


class ExactFun(AlgorithmSpec):
    algorithm: Literal["exact_fun"]
    quantum: Annotated[float, Field(gt=0, le=1000)] = Field(
        default=0.01, description="alpha: every weight of a new model is rounded to a multiple of this."
    )
