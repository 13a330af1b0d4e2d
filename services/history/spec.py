"""The policy of a run's history: what is kept of past rounds for methods that need it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from services.wire.message import Message


class UpdateHistory(Message):
    """Which updates are kept, sealed with their client's key, and in which form."""

    interval: Annotated[int, Field(ge=1, le=10_000)] = Field(
        default=1, description="Keep every n-th round; round 1 always."
    )
    window: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        default=None, description="Keep the newest n of those rounds, and round 1; all when absent."
    )
    dtype: Literal["fp32", "bf16", "fp16", "int8"] = Field(
        default="fp32", description="int8: one scale for each block of 1024 numbers."
    )
    compression: Literal["none", "zlib"] = "zlib"
    budget_bytes: Annotated[int, Field(ge=1, le=2**62)] | None = Field(
        default=None,
        description="Of each cohort. When it is exceeded, every second kept round is dropped, until it fits.",
    )


class History(Message):
    """What is kept of past rounds for approximate methods, besides the updates that retention keeps."""

    updates: UpdateHistory | None = Field(
        default=None, description="Keep sealed copies of updates; federaser needs them, or those that retention keeps."
    )
    distances: bool = Field(default=False, description="How far each update moved the model; sifu needs it.")
    residuals: bool = Field(default=False, description="Running vectors, one per client; fedrecovery needs them.")
