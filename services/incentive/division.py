"""Who serves which of several jobs for a period: clients, each with the jobs that it may serve, divided by a strategy.

`game`: the shares in which the evolutionary game ends, rounded to whole clients. `random`: a lot for each client and
period. `round_robin`: in turn, moved on by one each period. `greedy`: everybody to the largest reward. All are
functions of their arguments, by stable names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean
from typing import Final
from uuid import UUID

from services.core.seeds import derive
from services.incentive.game import Course, Game, Shares, even_over, play, total_utility, utilities
from services.incentive.spec import Incentives, Strategy

MEGABYTE: Final = 1e6


@dataclass(frozen=True, slots=True)
class Job:
    """A run, or a request to forget, that clients are wanted for."""

    id: UUID
    name: str
    pool: float
    """What each of its rounds pays those who served it."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A client, with what one round costs it."""

    client: str
    jobs: tuple[UUID, ...]
    """The jobs that it may serve."""
    samples: float
    seconds: float = 0.0
    bytes: float = 0.0
    stored_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Population:
    """Clients that may serve the same jobs and have about as many samples."""

    clients: tuple[str, ...]
    shares: tuple[float, ...]
    """A share for each job, in the order of the jobs."""
    utilities: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Division:
    jobs: Mapping[str, UUID]
    """The job that each client serves, by the client's name."""
    populations: tuple[Population, ...] = ()
    total_utility: float = 0.0
    num_periods: int = 0
    """How many periods the game took."""
    is_settled: bool = True
    """Whether the game ended in an equilibrium."""


def divide(
    strategy: Strategy, jobs: Sequence[Job], candidates: Sequence[Candidate], incentives: Incentives, period: int
) -> Division:
    """Clients that may serve no job are left out."""
    groups = populations_of(candidates, incentives.populations)
    if not jobs or not groups:
        return Division({})
    game, start = game_of(jobs, groups, incentives)
    course = Course((start,), is_settled=True)
    if strategy == "game":
        course = played(game, start, incentives)
        chosen = _rounded(jobs, groups, course.last, incentives.seed)
    else:
        chosen = _chosen(strategy, jobs, groups, incentives.seed, period)
    shares = course.last if strategy == "game" else _counted(jobs, groups, chosen)
    return Division(
        jobs=dict(sorted(chosen.items())),
        populations=tuple(
            Population(tuple(one.client for one in group), x, u)
            for group, x, u in zip(groups, shares, utilities(game, shares), strict=True)
        ),
        total_utility=total_utility(game, shares),
        num_periods=course.num_periods,
        is_settled=course.is_settled,
    )


def played(game: Game, start: Shares, incentives: Incentives) -> Course:
    return play(game, start, rate=incentives.learning_rate, periods=incentives.periods, tolerance=incentives.tolerance)


def populations_of(candidates: Sequence[Candidate], num: int) -> list[list[Candidate]]:
    """At most `num` populations of clients that may serve the same jobs, by their numbers of samples; clients with
    equally many are always in the same."""

    def place(one: Candidate) -> tuple[tuple[str, ...], float, str]:
        return tuple(map(str, one.jobs)), one.samples, one.client

    groups: list[list[Candidate]] = []
    able = sorted((one for one in candidates if one.jobs), key=place)
    for _, alike in groupby(able, key=lambda one: one.jobs):
        members = list(alike)
        first = {one.samples: rank for rank, one in reversed(list(enumerate(members)))}
        for _, group in groupby(members, key=lambda one: first[one.samples] * num // len(members)):
            groups.append(list(group))
    return groups


def game_of(jobs: Sequence[Job], groups: Sequence[Sequence[Candidate]], incentives: Incentives) -> tuple[Game, Shares]:
    """The game about these jobs, and the shares that it starts from: even over the jobs that a population may serve."""
    prices, everybody = incentives.prices, [one for group in groups for one in group]
    game = Game(
        sizes=tuple(len(group) for group in groups),
        samples=tuple(fmean(one.samples for one in group) for group in groups),
        pools=tuple(job.pool for job in jobs),
        fixed=(incentives.fixed,) * len(jobs),
        congestion=tuple(_congestion(job, everybody, prices.megabyte) for job in jobs),
        computation=tuple(fmean(computation_cost(one.seconds, incentives) for one in group) for group in groups),
        storage=tuple(fmean(storage_cost(one.stored_bytes, incentives) for one in group) for group in groups),
        loss=incentives.loss,
        reward=incentives.reward,
    )
    return game, even_over([[job.id in group[0].jobs for job in jobs] for group in groups])


def computation_cost(seconds: float, incentives: Incentives) -> float:
    return incentives.prices.second * seconds


def transfer_cost(num_bytes: float, incentives: Incentives) -> float:
    """What is lost on the way is sent again."""
    return incentives.prices.megabyte * num_bytes / MEGABYTE / (1.0 - incentives.loss)


def storage_cost(num_bytes: float, incentives: Incentives) -> float:
    return incentives.prices.stored_megabyte * num_bytes / MEGABYTE / (1.0 - incentives.loss)


def _congestion(job: Job, candidates: Sequence[Candidate], price: float) -> float:
    moved = [one.bytes for one in candidates if job.id in one.jobs]
    return price * fmean(moved) / MEGABYTE if moved else 0.0


def _rounded(jobs: Sequence[Job], groups: Sequence[Sequence[Candidate]], shares: Shares, seed: int) -> dict[str, UUID]:
    """Whole clients: each goes where most is still owed. Of two jobs, each gets its shares to within one client."""
    owed, chosen = [0.0] * len(jobs), dict[str, UUID]()
    for group, of_group in zip(groups, shares, strict=True):
        for one in sorted(group, key=lambda one: derive(seed, "allocation", one.client)):
            owed = [before + share for before, share in zip(owed, of_group, strict=True)]
            best = max((j for j, share in enumerate(of_group) if share > 0.0), key=lambda j: (owed[j], -j))
            owed[best] -= 1.0
            chosen[one.client] = jobs[best].id
    return chosen


def _chosen(
    strategy: Strategy, jobs: Sequence[Job], groups: Sequence[Sequence[Candidate]], seed: int, period: int
) -> dict[str, UUID]:
    chosen: dict[str, UUID] = {}
    everybody = sorted((one for group in groups for one in group), key=lambda one: one.client)
    for turn, one in enumerate(everybody, start=period):
        able = [job for job in jobs if job.id in one.jobs]
        if strategy == "greedy":
            chosen[one.client] = max(able, key=lambda job: job.pool).id
        else:
            lot = derive(seed, "allocation", period, one.client) if strategy == "random" else turn
            chosen[one.client] = able[lot % len(able)].id
    return chosen


def _counted(jobs: Sequence[Job], groups: Sequence[Sequence[Candidate]], chosen: Mapping[str, UUID]) -> Shares:
    return tuple(
        tuple(sum(chosen[one.client] == job.id for one in group) / len(group) for job in jobs) for group in groups
    )
