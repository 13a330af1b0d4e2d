"""The parameters that every training algorithm has: its name, and what a run takes from a client."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field

from services.core.figures import MOST_SAMPLES
from services.wire.message import Message


class AlgorithmSpec(Message):
    max_update_norm: Annotated[float, Field(gt=0, le=1e12)] | None = Field(
        default=None, description="The largest L2 norm of an update; none when absent."
    )
    large_updates: Literal["refuse", "clip"] = Field(
        default="refuse",
        description="What becomes of an update above max_update_norm: it is left out of the model and counted, or "
        "scaled down to the norm.",
    )
    max_samples_per_client: Annotated[int, Field(ge=1, le=MOST_SAMPLES)] | None = Field(
        default=None, description="A result that claims more samples is refused; the client's own cap applies, too."
    )
    algorithm: str

    def settled(self, num_clients: int, num_rounds: int) -> Self:
        """The parameters with what is fixed when a run starts, so that later draws do not depend on who left."""
        return self
