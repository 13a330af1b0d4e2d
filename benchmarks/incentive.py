"""Incentives: the total utility of clients that choose among three servers, by the evolutionary game and by chance,
turn and greed.

For each seed a set of parameters is drawn in the paper's ranges: 90 clients in three populations of 30, three servers,
even shares at first. The game runs for 300 periods; the other strategies have the same shares in all of them. Printed
are the total utilities over the periods (Fig. 4a), how they depend on the learning rate (4b) and on the number of
clients (4c), and when the game settles.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, get_args

from benchmarks.figures import Printer
from benchmarks.incentive_report import report_of
from benchmarks.report import write
from services.incentive.game import Game, Reward, Shares, play, standing, total_utility
from services.incentive.spec import Strategy

REWARDS: Final[tuple[Reward, ...]] = get_args(Reward)
STRATEGIES: Final[tuple[Strategy, ...]] = get_args(Strategy)
PERIODS, EVERY, EARLY, RATE = 300, 10, 50, 0.001
RATES: Final = (0.001, 0.002, 0.005, 0.01)
"""Fig. 4(b) shows four, which the paper does not name."""
CLIENTS: Final = (10, 30, 50, 70)
LONGEST, TOLERANCE = 3000, 1e-6
SERVERS, POPULATIONS = 3, 3


@dataclass(frozen=True)
class Setup:
    """Parameters of one seed, and the shares that chance has drawn."""

    game: Game
    drawn: Shares


def setup_of(seed: int, reward: Reward, num_clients: int = 90) -> Setup:
    """The same parameters for every reward and number of clients."""
    lots = random.Random(seed)

    def drawn(low: float, high: float) -> tuple[float, ...]:
        return tuple(lots.uniform(low, high) for _ in range(SERVERS))

    samples, pools, congestion = drawn(80, 120), drawn(100, 300), drawn(10, 20)
    fixed = tuple(unlearning + penalty for unlearning, penalty in zip(drawn(80, 120), drawn(30, 40), strict=True))
    sizes = tuple(num_clients // POPULATIONS + (p < num_clients % POPULATIONS) for p in range(POPULATIONS))
    costs = (0.1,) * POPULATIONS
    game = Game(sizes, samples, pools, fixed, congestion, costs, costs, loss=0.5, reward=reward)
    return Setup(game, tuple(_point_of_a_simplex(lots) for _ in range(POPULATIONS)))


def _point_of_a_simplex(lots: random.Random) -> tuple[float, ...]:
    """Every division of a population is equally likely."""
    parts = [lots.expovariate(1.0) for _ in range(SERVERS)]
    return tuple(part / sum(parts) for part in parts)


def shares_of(setup: Setup, strategy: Strategy, periods: int, rate: float) -> tuple[Shares, ...]:
    """In each period from the start on; one entry where they never change."""
    game = setup.game
    match strategy:
        case "game":
            return play(game, game.even(), rate=rate, periods=periods).shares
        case "random":
            return (setup.drawn,)
        case "round_robin":
            return (game.even(),)
        case "greedy":
            best = game.pools.index(max(game.pools))
            return (tuple(tuple(float(j == best) for j in range(SERVERS)) for _ in game.sizes),)


def courses(seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Fig. 4(a)."""
    for reward in REWARDS:
        for seed in seeds:
            setup = setup_of(seed, reward)
            for strategy in STRATEGIES:
                shares = shares_of(setup, strategy, PERIODS, RATE)
                for period in range(0, PERIODS + 1, EVERY):
                    total = total_utility(setup.game, shares[min(period, len(shares) - 1)])
                    yield {
                        "seed": seed,
                        "reward": reward,
                        "strategy": strategy,
                        "period": period,
                        "total_utility": round(total, 4),
                    }


def by_rate(seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Fig. 4(b): the mean over seeds of the total utility at period 50."""
    for reward in REWARDS:
        setups = [setup_of(seed, reward) for seed in seeds]
        for strategy in STRATEGIES:
            for rate in RATES:
                ends = [total_utility(s.game, shares_of(s, strategy, EARLY, rate)[-1]) for s in setups]
                mean = round(sum(ends) / len(ends), 4)
                yield {"figure": "4b", "reward": reward, "strategy": strategy, "learning_rate": rate, "mean": mean}


def by_clients(seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Fig. 4(c): the mean utility of a client at period 50."""
    for reward in REWARDS:
        for strategy in STRATEGIES:
            for num_clients in CLIENTS:
                setups = [setup_of(seed, reward, num_clients) for seed in seeds]
                ends = [total_utility(s.game, shares_of(s, strategy, EARLY, RATE)[-1]) / POPULATIONS for s in setups]
                mean = round(sum(ends) / len(ends), 4)
                yield {"figure": "4c", "reward": reward, "strategy": strategy, "clients": num_clients, "mean": mean}


def settling(seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
    """When the game settles, and how far it is from an equilibrium in the end: nothing moves, and utilities are equal
    over the servers that a population serves. With five times the paper's learning rate, which changes how long it
    takes and hardly where it leads."""
    for reward in REWARDS:
        for seed in seeds:
            game, rate = setup_of(seed, reward).game, RATE * 5
            course = play(game, game.even(), rate=rate, periods=LONGEST, tolerance=TOLERANCE)
            found = standing(game, course.last)
            yield {
                "figure": "equilibrium",
                "seed": seed,
                "reward": reward,
                "is_settled": course.is_settled,
                "periods": course.num_periods,
                "speed": found.speed,
                "spread": found.spread,
                "total": round(total_utility(game, course.last), 4),
            }


def middle(reward: Reward) -> Iterator[float]:
    """Total utilities over the periods with parameters in the middle of their ranges, the pools apart."""
    game = replace(
        setup_of(1, reward).game,
        samples=(80.0, 100.0, 120.0),
        pools=(100.0, 200.0, 300.0),
        fixed=(135.0,) * SERVERS,
        congestion=(15.0,) * SERVERS,
    )
    for shares in play(game, game.even(), rate=RATE, periods=PERIODS).shares:
        yield total_utility(game, shares)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="lethe bench incentive", description=__doc__)
    parser.add_argument("--json", action="store_true", help="JSON lines")
    parser.add_argument("--seeds", type=int, default=60, help="how many, from 1 on")
    parser.add_argument("--out", type=Path, default=Path("bench-incentive"), help="folder of the report")
    options = parser.parse_args(argv)
    seeds = range(1, options.seeds + 1)
    printer, rows = Printer(as_json=options.json, benchmark="incentive"), list[dict[str, Any]]()
    for table in (courses, by_rate, by_clients, settling):
        printer.new_table()
        for row in table(seeds):
            rows.append(row)
            if options.json or row.get("period") in (None, PERIODS):
                printer.row(row)
    curves: dict[str, list[float]] = {reward: list(middle(reward)) for reward in REWARDS}
    write(report_of(rows, curves, f"lethe bench incentive --seeds {options.seeds}", seeds), options.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
