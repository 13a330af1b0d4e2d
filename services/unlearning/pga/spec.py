"""Parameters of PGA and of the work that its leaver is given."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from services.methods.description import TaskParameters
from services.wire.message import Message

Positive = Annotated[float, Field(gt=0, le=1e12)]
NUM_RANDOM_MODELS: Final = 10


class _Climb(Message):
    """How the leaver ascends; part of the request and of its task."""

    learning_rate: Annotated[float, Field(gt=0, le=100)] = 0.01
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    clip_norm: Positive = 5.0
    batch_size: Annotated[int, Field(ge=1, le=1_000_000)] = 128
    max_epochs: Annotated[int, Field(ge=1, le=1000)] = 5
    check_every: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        default=8, description="Steps between two looks at the leaver's accuracy on its own data."
    )
    distance_bound: Positive | None = Field(
        default=None, description="Also stop once the model is this far from the reference."
    )


class Pga(_Climb):
    method: Literal["pga"] = "pga"
    stop_accuracy: Annotated[float, Field(ge=0, le=1)] | None = Field(
        default=None,
        description="Stop when the leaver's accuracy on its own data is at most this; 1 / number of classes if absent.",
    )
    radius: Positive | None = Field(
        default=None, description="Of the ball; when absent, from ten random models (not possible for model custom)."
    )
    deadline_s: Annotated[float, Field(gt=0, le=30 * 86400)] = Field(
        default=3600.0, description="How long to wait for the leaver."
    )


class Ascend(_Climb, TaskParameters):
    """The leaver's task: climb from the model that it is given, inside a ball around it."""

    kind: Literal["ascend"] = "ascend"
    radius: Positive
    stop_accuracy: Annotated[float, Field(ge=0, le=1)]
