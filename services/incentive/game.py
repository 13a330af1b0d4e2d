"""The evolutionary game in which populations of clients choose among servers (Incentive and Dynamic Client Selection
for Federated Unlearning, §4).

Populations p differ by how many samples a client has; x[p][j] is the share of population p that serves server j. A
client's utility is its reward less what communication, computation and storage cost it. Shares follow the replicator
dynamics: a server that is better than a population's average gains, one that is worse loses. Everything is plain
floating point in a fixed order, so that the same figures give the same shares on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

Reward = Literal["paper", "per_client", "per_population"]
Shares = tuple[tuple[float, ...], ...]
"""Shares by population, then by server. A share of exactly zero stays zero: the population may not serve that
server."""

SMALLEST: Final = 1e-12
"""A share that has been above zero never falls below this, so that it could come back."""
SUPPORT: Final = 1e-6
"""Servers with smaller shares count as deserted."""
LARGEST_STEP: Final = 0.5
"""No step takes more than this part of a share away, or adds more to it, however large the utilities are."""


@dataclass(frozen=True, slots=True)
class Game:
    """What the utilities are made of; of P populations and J servers."""

    sizes: tuple[int, ...]
    """Clients of each population."""
    samples: tuple[float, ...]
    """d_p, the samples that a client of each population has."""
    pools: tuple[float, ...]
    """psi_j, what each server divides among those who serve it."""
    fixed: tuple[float, ...]
    """F_j^u + F_j^c, what each server pays whoever serves it."""
    congestion: tuple[float, ...]
    """zeta_j: what communication with each server costs, once for each that it is shared with."""
    computation: tuple[float, ...]
    """C_cp of each population."""
    storage: tuple[float, ...]
    """C_cs of each population."""
    loss: float = 0.5
    """phi, the part of what is sent that is lost and has to be sent again."""
    reward: Reward = "paper"

    @property
    def num_servers(self) -> int:
        return len(self.pools)

    def even(self) -> Shares:
        """Every population divides itself evenly."""
        return tuple((1.0 / self.num_servers,) * self.num_servers for _ in self.sizes)


def utilities(game: Game, shares: Shares) -> Shares:
    """u_j^p of every population at every server."""
    quantities = [size * samples for size, samples in zip(game.sizes, game.samples, strict=True)]
    loads = [sum(of_population[j] for of_population in shares) for j in range(game.num_servers)]
    data = [sum(x[j] * d for x, d in zip(shares, quantities, strict=True)) for j in range(game.num_servers)]
    return tuple(
        tuple(
            game.pools[j] * _part(game, p, shares[p][j], data[j])
            + game.fixed[j]
            - communication_cost(game.congestion[j], loads[j], game.loss)
            - game.computation[p]
            - game.storage[p]
            for j in range(game.num_servers)
        )
        for p in range(len(game.sizes))
    )


def communication_cost(congestion: float, load: float, loss: float) -> float:
    """C_cm: it grows with the square of the load, the sum of all populations' shares."""
    return congestion / (1.0 - loss) * load**2


def _part(game: Game, population: int, share: float, data: float) -> float:
    """The part of a server's pool that is a population's, a client's, or of one that would come with all its clients.
    Whoever comes first to a server that nobody serves takes all of it."""
    if data <= 0.0:
        return 1.0
    samples = game.samples[population]
    quantity = samples * game.sizes[population]
    match game.reward:
        case "paper":
            return share * quantity / data
        case "per_client":
            return samples / data
        case "per_population":
            return quantity / data


def averages(shares: Shares, utility: Shares) -> tuple[float, ...]:
    """The mean utility of each population."""
    return tuple(sum(x * u for x, u in zip(xs, us, strict=True)) for xs, us in zip(shares, utility, strict=True))


def total_utility(game: Game, shares: Shares) -> float:
    return sum(averages(shares, utilities(game, shares)))


def step(game: Game, shares: Shares, rate: float) -> Shares:
    """One period of the replicator dynamics: x += rate * x (u - mean u), kept above zero and summing to one."""
    utility = utilities(game, shares)
    means = averages(shares, utility)
    gains = [[u - mean for u in us] for us, mean in zip(utility, means, strict=True)]
    felt = (abs(gain) for xs, of_population in zip(shares, gains, strict=True)
            for x, gain in zip(xs, of_population, strict=True) if x > 0.0)  # fmt: skip
    largest = max(felt, default=0.0)
    pace = min(rate, LARGEST_STEP / largest) if largest > 0.0 else rate
    moved = []
    for xs, of_population in zip(shares, gains, strict=True):
        raw = [
            min(1.0, max(SMALLEST, x + pace * x * gain)) if x > 0.0 else 0.0
            for x, gain in zip(xs, of_population, strict=True)
        ]
        whole = sum(raw)
        moved.append(tuple(x / whole for x in raw) if whole > 0.0 else xs)
    return tuple(moved)


@dataclass(frozen=True, slots=True)
class Standing:
    """How far shares are from an equilibrium."""

    speed: float
    """The largest change of any share in one period at a rate of 1."""
    spread: float
    """The largest difference of utilities between servers that a population serves."""

    def is_settled(self, rate: float, tolerance: float) -> bool:
        """Both hold: nothing moves, and nobody would gain by moving among the servers that are served."""
        return self.speed * rate < tolerance and self.spread * rate < tolerance


def standing(game: Game, shares: Shares) -> Standing:
    utility = utilities(game, shares)
    speed = spread = 0.0
    for xs, us, mean in zip(shares, utility, averages(shares, utility), strict=True):
        speed = max(speed, max((abs(x * (u - mean)) for x, u in zip(xs, us, strict=True)), default=0.0))
        served = [u for x, u in zip(xs, us, strict=True) if x > SUPPORT]
        spread = max(spread, max(served) - min(served) if served else 0.0)
    return Standing(speed, spread)


@dataclass(frozen=True, slots=True)
class Course:
    """Shares over the periods, from the start."""

    shares: tuple[Shares, ...]
    is_settled: bool
    """Whether it ended in an equilibrium, and not because the periods were over."""

    @property
    def last(self) -> Shares:
        return self.shares[-1]

    @property
    def num_periods(self) -> int:
        return len(self.shares) - 1


def play(game: Game, start: Shares, *, rate: float, periods: int, tolerance: float | None = None) -> Course:
    """Let the shares evolve. With a `tolerance` it ends at the first equilibrium; without, after all `periods`."""
    course = [start]
    while len(course) <= periods:
        if tolerance is not None and standing(game, course[-1]).is_settled(rate, tolerance):
            return Course(tuple(course), is_settled=True)
        course.append(step(game, course[-1], rate))
    settled = tolerance is not None and standing(game, course[-1]).is_settled(rate, tolerance)
    return Course(tuple(course), settled)


def even_over(may_serve: Sequence[Sequence[bool]]) -> Shares:
    """Each population divides itself evenly over the servers that it may serve."""
    return tuple(tuple(1.0 / max(1, sum(allowed)) if one else 0.0 for one in allowed) for allowed in may_serve)
