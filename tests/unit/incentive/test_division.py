"""Clients are divided among jobs: by the game's shares, or by the strategies it is compared with."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.incentive.division import Candidate, Division, Job, divide, populations_of
from services.incentive.spec import Incentives, Prices, Strategy

ONE, TWO, THREE = (UUID(int=n) for n in (1, 2, 3))
STRATEGIES: list[Strategy] = ["game", "random", "round_robin", "greedy"]


def clients(num: int, *jobs: UUID, samples: int = 100, bytes: float = 1e6) -> list[Candidate]:
    return [Candidate(f"client-{n}", jobs, samples + n % 3 * 10, seconds=10, bytes=bytes) for n in range(num)]


def counts(division: Division) -> Counter[UUID]:
    return Counter(division.jobs.values())


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_everybody_serves_one_of_the_jobs_that_it_may(strategy: Strategy) -> None:
    jobs = [Job(ONE, "a", 100.0), Job(TWO, "b", 200.0)]
    able = [*clients(6, ONE, TWO), Candidate("only-a", (ONE,), 50), Candidate("nothing", (), 50)]

    division = divide(strategy, jobs, able, Incentives(), period=1)

    assert division.jobs.keys() == {one.client for one in able} - {"nothing"}
    assert division.jobs["only-a"] == ONE
    for population in division.populations:
        assert sum(population.shares) == pytest.approx(1.0)
    assert divide(strategy, jobs, able[::-1], Incentives(), period=1) == division, "the order of clients plays no part"


@given(st.integers(1, 40), st.floats(0, 1e6), st.floats(0, 1e6), st.sampled_from(["paper", "per_client"]))
def test_of_two_jobs_each_gets_the_games_share_to_within_one_client(
    num: int, first: float, second: float, reward: str
) -> None:
    jobs = [Job(ONE, "a", first), Job(TWO, "b", second)]
    incentives = Incentives.model_validate({"reward": reward, "periods": 300})

    division = divide("game", jobs, clients(num, ONE, TWO), incentives, period=1)

    for place, job in enumerate(jobs):
        wanted = sum(len(one.clients) * one.shares[place] for one in division.populations)
        assert abs(counts(division)[job.id] - wanted) <= 1.0


def test_a_job_that_pays_more_gets_more_clients() -> None:
    jobs, incentives = [Job(ONE, "a", 120.0), Job(TWO, "b", 100.0)], Incentives(prices=Prices(megabyte=15))

    division = divide("game", jobs, [Candidate(f"c{n}", (ONE, TWO), 100, bytes=1e6) for n in range(12)], incentives, 1)

    assert division.is_settled
    assert counts(division) == {ONE: 10, TWO: 2}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_rewards_of_zero_divide_by_costs_alone(strategy: Strategy) -> None:
    jobs = [Job(ONE, "a", 0.0), Job(TWO, "b", 0.0)]

    division = divide(strategy, jobs, clients(10, ONE, TWO), Incentives(), period=1)

    assert sum(counts(division).values()) == 10
    if strategy in ("game", "round_robin"):
        assert counts(division) == {ONE: 5, TWO: 5}
    if strategy == "greedy":
        assert counts(division) == {ONE: 10}, "of equal rewards the oldest job's"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_population_of_one_serves_one_job(strategy: Strategy) -> None:
    jobs = [Job(ONE, "a", 10.0), Job(TWO, "b", 300.0), Job(THREE, "c", 20.0)]

    division = divide(strategy, jobs, clients(1, ONE, TWO, THREE), Incentives(), period=1)

    assert len(division.jobs) == 1
    if strategy in ("game", "greedy"):
        assert division.jobs["client-0"] == TWO


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_without_jobs_or_clients_nobody_is_divided(strategy: Strategy) -> None:
    assert divide(strategy, [], clients(3), Incentives(), period=1) == Division({})
    assert divide(strategy, [Job(ONE, "a", 1.0)], [], Incentives(), period=1) == Division({})
    assert divide(strategy, [Job(ONE, "a", 1.0)], clients(3, ONE), Incentives(), period=1).jobs.keys() == {
        "client-0",
        "client-1",
        "client-2",
    }


def test_a_job_that_nobody_may_serve_gets_nobody() -> None:
    jobs = [Job(ONE, "a", 100.0), Job(TWO, "b", 300.0)]

    division = divide("game", jobs, clients(5, ONE), Incentives(), period=1)

    assert counts(division) == {ONE: 5}
    assert all(one.shares == (1.0, 0.0) for one in division.populations)


def test_round_robin_moves_on_with_the_periods_and_random_draws_anew() -> None:
    jobs, able = [Job(ONE, "a", 1.0), Job(TWO, "b", 1.0)], clients(8, ONE, TWO)

    turns = [divide("round_robin", jobs, able, Incentives(), period).jobs["client-0"] for period in (1, 2, 3)]
    drawn = [divide("random", jobs, able, Incentives(), period).jobs for period in (1, 2, 3)]

    assert turns[0] == turns[2] != turns[1]
    assert drawn[0] != drawn[1]


def test_populations_are_by_quantity_and_by_what_clients_may_serve() -> None:
    able = [Candidate(f"c{n}", (ONE, TWO), samples) for n, samples in enumerate((10, 10, 10, 20, 30, 30))]

    found = populations_of([*able, Candidate("x", (ONE,), 10), Candidate("y", (), 10)], 3)

    assert [[one.client for one in group] for group in found] == [["x"], ["c0", "c1", "c2"], ["c3"], ["c4", "c5"]]


def test_however_large_rewards_are_shares_stay_shares() -> None:
    jobs = [Job(ONE, "a", 1e9), Job(TWO, "b", 1.0)]

    division = divide("game", jobs, clients(9, ONE, TWO), Incentives(learning_rate=1.0, periods=500), period=1)

    for one in division.populations:
        assert all(0.0 <= share <= 1.0 for share in one.shares)
        assert sum(one.shares) == pytest.approx(1.0)
