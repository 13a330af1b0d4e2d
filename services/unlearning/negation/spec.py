"""Parameters of NoT."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from services.wire.message import Message

TensorName = Annotated[str, Field(min_length=1, max_length=1024)]


class Negation(Message):
    method: Literal["not"] = "not"
    layers: Annotated[list[TensorName], Field(min_length=1, max_length=1000)] | None = Field(
        default=None,
        description="Tensors to negate; when absent the first layer's weights (model custom has to name them).",
    )
