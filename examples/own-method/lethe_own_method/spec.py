"""The parameters that a request may give."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from services.wire.message import Message


class ScaleOut(Message):
    factor: Annotated[float, Field(gt=0, le=10)] = Field(
        default=1.0, description="How much of the leaver's last update is taken out; above 1: more than it added."
    )
