"""The policy of a run's update history."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from services.wire.message import Message


class History(Message):
    """Which updates are kept for methods that need them, and in which form."""

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
        default=None, description="When it is exceeded, every second kept round is dropped, until it fits."
    )
    residuals: bool = Field(default=False, description="Keep the running vectors that fedrecovery needs.")
    distances: bool = Field(default=False, description="Measure the distances that sifu needs.")
