"""Parameters of NoT, and what it promises and needs."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from services.unlearning.method import Method
from services.wire.message import Message

TensorName = Annotated[str, Field(min_length=1, max_length=1024)]


class Negation(Message):
    method: Literal["not"] = "not"
    layers: (
        Annotated[list[Annotated[str, Field(min_length=1, max_length=1024)]], Field(min_length=1, max_length=1000)]
        | None
    ) = Field(
        default=None,
        description="Tensors to negate; when absent the first layer's weights (model custom has to name them).",
    )


METHOD: Final = Method(
    "approximate",
    "negate the first layer's weights, then let the remaining clients train on",
    spec=Negation,
    recovery_rounds=5,
)
