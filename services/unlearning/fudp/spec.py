"""Parameters of FUDP and of the work that its clients are given."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from services.methods.description import TaskParameters
from services.wire.message import Message

ClassIndex = Annotated[int, Field(ge=0, le=65_535)]


class Fudp(Message):
    method: Literal["fudp"] = "fudp"
    forget_class: ClassIndex = Field(description="The class to forget: the one that left with the client.")
    ratio: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=0.1, description="The share of all channels that is pruned: those that tell the class apart best."
    )
    deadline_s: Annotated[float, Field(gt=0, le=30 * 86400)] = Field(
        default=3600.0, description="How long to wait for the clients' scores."
    )


class RateChannels(TaskParameters):
    """The task of each client that remains: how well each channel tells the class apart, on its own data."""

    kind: Literal["rate_channels"] = "rate_channels"
    forget_class: ClassIndex
