"""How long a client takes in virtual time, drawn from the experiment's seed under stable names."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from services.core.seeds import derive
from services.wire.message import Message

Seconds = Annotated[float, Field(gt=0, le=1e9)]


class Fixed(Message):
    """Everybody takes the same time."""

    kind: Literal["fixed"] = "fixed"
    seconds: Seconds = 1.0


class Drawn(Message):
    per: Literal["client", "task"] = Field(
        default="client", description="client: drawn once, so slow clients stay slow; task: drawn anew for each task."
    )


class Pareto(Drawn):
    """P(time > t) = (scale_s / t)^alpha from scale_s on: few clients are very slow."""

    kind: Literal["pareto"] = "pareto"
    alpha: Annotated[float, Field(gt=0, le=100)] = 1.0
    scale_s: Seconds = 1.0
    at_most_s: Seconds | None = Field(default=None, description="Longer draws become this.")
    base_s: Annotated[float, Field(ge=0, le=1e9)] = Field(default=0.0, description="Added to every draw.")


class LogNormal(Drawn):
    """The logarithm of time / scale_s is normal with this standard deviation."""

    kind: Literal["log_normal"] = "log_normal"
    scale_s: Seconds = 1.0
    sigma: Annotated[float, Field(ge=0, le=10)] = 0.5


class Measured(Drawn):
    """One of the given times, each equally likely."""

    kind: Literal["measured"] = "measured"
    seconds: Annotated[tuple[Seconds, ...], Field(strict=False, min_length=1)]


Duration = Annotated[Fixed | Pareto | LogNormal | Measured, Field(discriminator="kind")]


def draw(duration: Duration, seed: int, client: str, task: str) -> float:
    """Seconds that `client` takes for `task` (a name that is stable over restarts, like a cohort and a round)."""
    if isinstance(duration, Fixed):
        return duration.seconds
    names = (client,) if duration.per == "client" else (client, task)
    numbers = np.random.default_rng(derive(seed, "duration", *names))
    match duration:
        case Pareto():
            seconds: float = duration.scale_s * (1 - numbers.random()) ** (-1 / duration.alpha)
            return duration.base_s + min(seconds, duration.at_most_s or math.inf)
        case LogNormal():
            return duration.scale_s * math.exp(duration.sigma * numbers.standard_normal())
        case Measured():
            return duration.seconds[int(numbers.integers(len(duration.seconds)))]
