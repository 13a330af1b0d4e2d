"""How a federation divides its clients among jobs, as operators set and see it, and what clients earned and paid."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field, model_validator

from services.incentive.spec import Incentives, Strategy
from services.wire.message import Id, Message, Name
from services.wire.v1.people import FourEyes


class FederationChange(Message):
    """What is left out stays as it is. Another allocation begins a new period."""

    allocation: Strategy | None = Field(
        default=None,
        description="How clients are divided among runs and requests to forget that go on at the same time; null: "
        "every client serves all of them.",
    )
    incentives: Incentives = Incentives()
    four_eyes: FourEyes | None = Field(
        default=None,
        description="Whether somebody else than the filer has to approve requests to forget that are filed from now "
        "on; an admin may change it.",
    )

    @property
    def changes_allocation(self) -> bool:
        return not self.model_fields_set.isdisjoint({"allocation", "incentives"})

    @model_validator(mode="after")
    def _changes_something(self) -> FederationChange:
        if not self.changes_allocation and self.four_eyes is None:
            raise ValueError("say what is to change: allocation, incentives or four_eyes")
        if "incentives" in self.model_fields_set and "allocation" not in self.model_fields_set:
            raise ValueError("incentives belong to an allocation: name it as well")
        return self


class PeriodJob(Message):
    """An open run, or a request to forget whose cohorts still train."""

    id: Id
    name: str
    pool: float = Field(description="What each of its rounds pays those who served it.")


class PeriodClient(Message):
    """What was known of a client: as it declared, or as it was measured."""

    client: Name
    jobs: list[Id] = Field(description="The jobs that it may serve.")
    samples: float
    seconds: float
    bytes: float
    stored_bytes: float


class PeriodPopulation(Message):
    """Clients that may serve the same jobs and have about as many samples."""

    clients: list[Name]
    shares: list[float] = Field(description="By job.")
    utilities: list[float] = Field(description="By job.")


class Period(Message):
    """A division of a federation's clients among its jobs. Figures of clients that were erased since are gone, and with
    them the populations."""

    number: int
    strategy: Strategy
    begun_at: datetime
    incentives: Incentives
    jobs: list[PeriodJob]
    clients: list[PeriodClient]
    serves: dict[Name, Id] = Field(description="The job that each client serves.")
    populations: list[PeriodPopulation]
    total_utility: float
    num_periods: int = Field(description="That the game took.")
    is_settled: bool = Field(description="Whether the game ended in an equilibrium, and not because it took too long.")


class LedgerEntry(Message):
    """What an answer cost its client, or what the round that used it paid."""

    id: Id
    client_id: Id
    client_name: Name
    job_id: Id = Field(description="The run, or the request to forget, that the client served.")
    run_id: Id
    period: int
    round: int
    kind: Literal["cost", "reward"]
    amounts: dict[str, float] = Field(
        description="cost: computation, communication, storage; reward: share, fixed. Empty: its client was erased."
    )
    at: datetime
