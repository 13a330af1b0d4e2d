"""Parameters of FedEraser."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from services.wire.message import Message


class FedEraser(Message):
    method: Literal["federaser"] = "federaser"
    interval: Annotated[int, Field(ge=1, le=10_000)] = Field(
        default=1, description="Δt: walk through every n-th round of the history; its first round always."
    )
    calibration_ratio: Annotated[float, Field(gt=0, le=1)] = Field(
        default=0.5, description="r: clients calibrate for ⌈r·E⌉ epochs, E being those of ordinary training."
    )
    participants: Literal["original", "policy"] = Field(
        default="original",
        description="Who calibrates a round: those who took part in it, or as many as the run's selection draws.",
    )
    quorum: Annotated[float, Field(gt=0, le=1)] = Field(
        default=0.5, description="A round with answers from less than this share of those asked is skipped and counted."
    )
    deadline_s: Annotated[float, Field(gt=0, le=30 * 86400)] = Field(
        default=600.0, description="How long a round waits for those who are asked."
    )
    max_skipped: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.5, description="Give up when more than this share of the rounds had to be skipped."
    )
