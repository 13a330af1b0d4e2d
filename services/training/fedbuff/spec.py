"""Parameters of buffered asynchronous aggregation."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from services.training.algorithm_spec import AlgorithmSpec


class FedBuff(AlgorithmSpec):
    algorithm: Literal["fedbuff"]
    buffer_size: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        default=10, description="M: the server steps when this many updates are in (scaled down to small cohorts)."
    )
    concurrency: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        default=20, description="C: how many clients train at the same time (scaled down to small cohorts)."
    )
    staleness_exponent: Annotated[float, Field(ge=0, le=10)] = Field(
        default=0.5, description="p in the weight (1 + staleness)^-p."
    )
    staleness_bound: Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        default=20, description="An update whose base is more than this many server steps old is refused."
    )
    server_learning_rate: Annotated[float, Field(gt=0, le=100)] = 1.0
