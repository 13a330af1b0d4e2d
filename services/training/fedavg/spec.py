"""Parameters of federated averaging."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from services.training.algorithm_spec import AlgorithmSpec


class FedAvg(AlgorithmSpec):
    algorithm: Literal["fedavg"] = "fedavg"
    clients_per_round: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        default=None, description="How many clients to ask each round; all members when absent."
    )
    quorum: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        default=None,
        description="How many updates a round needs once its deadline has passed; all that were asked when absent.",
    )
    deadline_s: Annotated[float, Field(gt=0, le=30 * 86400)] | None = Field(
        default=None,
        description="When a round may close with a quorum instead of everybody; it waits for all when absent.",
    )
    server_learning_rate: Annotated[float, Field(gt=0, le=100)] = 1.0
