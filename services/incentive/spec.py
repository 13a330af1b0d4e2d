"""What an operator chooses of a federation's incentives, and what a client declares that a round costs it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from services.core.figures import MOST_SAMPLES
from services.incentive.game import Reward
from services.wire.message import Message

Strategy = Literal["game", "random", "round_robin", "greedy"]
Amount = Annotated[float, Field(ge=0, le=1e9)]


class Prices(Message):
    """What a client's resources cost, in the unit that rewards are paid in."""

    second: Amount = Field(default=0.01, description="Of computation.")
    megabyte: Amount = Field(default=1.0, description="Sent or received.")
    stored_megabyte: Amount = Field(default=0.01, description="Stored while the job goes on.")


class Incentives(Message):
    """What jobs pay and work costs, and how the game about it is played."""

    reward: Reward = Field(
        default="paper",
        description="How a job's reward counts in the game: `paper` (as printed: a population's part of it), "
        "`per_client` (a client's part), `per_population` (the part of a population that came as a whole).",
    )
    pool: Amount = Field(default=100.0, description="What each round of a job pays that names no reward of its own.")
    fixed: Amount = Field(default=0.0, description="What everybody is paid besides for each round that it serves.")
    prices: Prices = Prices()
    loss: Annotated[float, Field(ge=0, le=0.99)] = Field(
        default=0.5, description="The part of what is sent that is lost on the way and sent again."
    )
    populations: Annotated[int, Field(ge=1, le=20)] = Field(
        default=3, description="Into how many populations clients are divided by their numbers of samples."
    )
    learning_rate: Annotated[float, Field(gt=0, le=1)] = Field(default=0.001, description="Of the replicator dynamics.")
    periods: Annotated[int, Field(ge=1, le=3000)] = Field(
        default=3000, description="The game is over after so many periods, or when it has settled."
    )
    tolerance: Annotated[float, Field(gt=0, le=1)] = Field(
        default=1e-6, description="It has settled when neither shares nor utilities of a period differ by more."
    )
    at_least: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        default=1,
        description="So many clients serve a cohort (all, where it has fewer), whatever it pays: none of them waits.",
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0


class Resources(Message):
    """What a client says that one round costs it. What it leaves out is measured."""

    samples: Annotated[int, Field(ge=1, le=MOST_SAMPLES)] | None = Field(default=None, description="That it trains on.")
    seconds: Amount | None = Field(default=None, description="Of computation.")
    bytes: Annotated[int, Field(ge=0, le=2**50)] | None = Field(default=None, description="Sent and received.")
    stored_bytes: Annotated[int, Field(ge=0, le=2**50)] | None = Field(default=None, description="Kept on its disk.")
