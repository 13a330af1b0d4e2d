"""What clients are told in every round of a recovery, whatever its method is."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from services.methods.description import TaskParameters


class RecoveryTask(TaskParameters):
    recovery: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,80}$")] = Field(
        description="Names this recovery: what a client keeps for its rounds, it keeps under this name."
    )
    seed: int = Field(description="The same in all rounds of the recovery: drives what is made once.")
    number: Annotated[int, Field(ge=1)] = Field(description="Of the round, counted from 1.")
    num_rounds: Annotated[int, Field(ge=1)] = Field(description="The last round has this number.")

    @property
    def is_last(self) -> bool:
        return self.number >= self.num_rounds
