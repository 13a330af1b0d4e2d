"""The evolutionary game in exact rational arithmetic, from the formulas: utilities, a replicator step, equilibrium."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.incentive.game import Game, Reward, Shares, play, standing, step, total_utility, utilities

REWARDS: list[Reward] = ["paper", "per_client", "per_population"]
Exact = list[list[Fraction]]


def exact_utilities(game: Game, shares: Exact) -> Exact:
    """u_j^p = reward - zeta_j / (1 - phi) * (sum_p x_j^p)^2 - C_cp^p - C_cs^p."""
    populations, servers = range(len(game.sizes)), range(len(game.pools))
    d = [Fraction(samples) for samples in game.samples]
    large = [Fraction(game.sizes[p]) * d[p] for p in populations]
    found: Exact = []
    for p in populations:
        row = []
        for j in servers:
            weight = sum((shares[q][j] * large[q] for q in populations), Fraction(0))
            load = sum((shares[q][j] for q in populations), Fraction(0))
            psi = Fraction(game.pools[j])
            if weight == 0:
                reward = psi
            elif game.reward == "paper":
                reward = psi * shares[p][j] * large[p] / weight
            elif game.reward == "per_client":
                reward = psi * d[p] / weight
            else:
                reward = psi * large[p] / weight
            communication = Fraction(game.congestion[j]) / (1 - Fraction(game.loss)) * load**2
            costs = Fraction(game.computation[p]) + Fraction(game.storage[p])
            row.append(reward + Fraction(game.fixed[j]) - communication - costs)
        found.append(row)
    return found


def exact_step(game: Game, shares: Exact, rate: Fraction) -> Exact:
    """x + delta x (u - mean u); a delta that would take away more than half of any share is cut to half."""
    gains: Exact = []
    for xs, us in zip(shares, exact_utilities(game, shares), strict=True):
        mean = sum((x * u for x, u in zip(xs, us, strict=True)), Fraction(0))
        gains.append([u - mean if x else Fraction(0) for x, u in zip(xs, us, strict=True)])
    largest = max(abs(gain) for row in gains for gain in row)
    rate = rate if rate * largest <= Fraction(1, 2) else Fraction(1, 2) / largest
    return [
        [x + rate * x * gain for x, gain in zip(xs, row, strict=True)] for xs, row in zip(shares, gains, strict=True)
    ]


def as_exact(shares: Shares) -> Exact:
    return [[Fraction(x) for x in xs] for xs in shares]


@st.composite
def games(draw: Any, reward: Reward) -> tuple[Game, Shares]:
    populations, servers = draw(st.integers(1, 4)), draw(st.integers(1, 4))

    def several(low: float, high: float, num: int) -> tuple[float, ...]:
        return tuple(draw(st.lists(st.floats(low, high, width=32), min_size=num, max_size=num)))

    game = Game(
        sizes=tuple(draw(st.lists(st.integers(1, 50), min_size=populations, max_size=populations))),
        samples=several(1, 200, populations),
        pools=several(0, 300, servers),
        fixed=several(0, 150, servers),
        congestion=several(0, 20, servers),
        computation=several(0, 1, populations),
        storage=several(0, 1, populations),
        loss=draw(st.sampled_from([0.0, 0.25, 0.5])),
        reward=reward,
    )
    shares = []
    for _ in range(populations):
        parts = draw(st.lists(st.integers(0, 9), min_size=servers, max_size=servers).filter(any))
        shares.append(tuple(part / sum(parts) for part in parts))
    return game, tuple(shares)


@pytest.mark.parametrize("reward", REWARDS)
@given(data=st.data())
def test_utilities_agree_with_exact_arithmetic(reward: Reward, data: st.DataObject) -> None:
    game, shares = data.draw(games(reward))

    found, exact = utilities(game, shares), exact_utilities(game, as_exact(shares))

    for row, wanted in zip(found, exact, strict=True):
        assert row == pytest.approx([float(u) for u in wanted], rel=1e-9, abs=1e-6)
    total = sum(Fraction(x) * u for xs, us in zip(shares, exact, strict=True) for x, u in zip(xs, us, strict=True))
    assert total_utility(game, shares) == pytest.approx(float(total), rel=1e-9, abs=1e-6)


@pytest.mark.parametrize("reward", REWARDS)
@given(data=st.data())
def test_a_replicator_step_agrees_with_exact_arithmetic(reward: Reward, data: st.DataObject) -> None:
    game, shares = data.draw(games(reward))
    rate = data.draw(st.sampled_from([1e-4, 1e-3, 0.1]))

    moved, exact = step(game, shares, rate), exact_step(game, as_exact(shares), Fraction(rate))

    for row, wanted in zip(moved, exact, strict=True):
        assert row == pytest.approx([float(x) for x in wanted], rel=1e-9, abs=1e-9)
        assert sum(row) == pytest.approx(1.0)
        assert all(x >= 0 for x in row)


def test_one_population_settles_where_the_formula_says() -> None:
    """u_1 = u_2 of one population and two servers: x_1 = (1 + (psi_1 - psi_2) / c) / 2 with c = zeta / (1 - phi)."""
    game = Game((30,), (100.0,), (120.0, 110.0), (100.0, 100.0), (15.0, 15.0), (0.1,), (0.1,))

    course = play(game, game.even(), rate=0.01, periods=20_000, tolerance=1e-9)

    assert course.is_settled
    assert course.last[0][0] == pytest.approx((1 + (120 - 110) / 30) / 2, abs=1e-5)


def test_what_has_settled_is_an_equilibrium() -> None:
    """Nothing moves, and over the servers that a population serves utilities are equal: by the exact formulas. The
    congestion game has one equilibrium: every start ends at the same loads, and nobody gains by moving."""
    game = Game(
        (30, 30, 30), (80.0, 100.0, 120.0), (150.0, 200.0, 250.0), (135.0,) * 3, (15.0,) * 3, (0.1,) * 3, (0.1,) * 3,
        reward="per_population",
    )  # fmt: skip
    ends = []
    for start in (game.even(), ((0.8, 0.1, 0.1),) * 3, ((0.1, 0.1, 0.8), (0.3, 0.4, 0.3), (0.5, 0.25, 0.25))):
        course = play(game, start, rate=0.005, periods=20_000, tolerance=1e-7)
        assert course.is_settled
        exact = exact_utilities(game, as_exact(course.last))
        for xs, us in zip(course.last, exact, strict=True):
            served = [float(u) for x, u in zip(xs, us, strict=True) if x > 1e-6]
            assert max(served) - min(served) < 1e-4
            mean = sum(Fraction(x) * u for x, u in zip(xs, us, strict=True))
            assert all(float(u - mean) < 1e-4 for u in us), "somebody would gain by moving"
            assert all(abs(float(Fraction(x) * (u - mean))) < 1e-4 for x, u in zip(xs, us, strict=True))
        ends.append([sum(xs[j] for xs in course.last) for j in range(3)])
    assert ends[1] == pytest.approx(ends[0], abs=1e-3)
    assert ends[2] == pytest.approx(ends[0], abs=1e-3)


def test_either_stop_rule_alone_is_not_enough() -> None:
    """A share that has almost gone hardly moves although utilities differ; equal utilities over the support are
    reached from shares that still move."""
    game = Game((10,), (100.0,), (100.0, 50.0), (0.0, 0.0), (0.0, 0.0), (0.0,), (0.0,))

    nearly_gone = standing(game, ((1 - 2e-6, 2e-6),))
    just_below = standing(game, ((1 - 1e-7, 1e-7),))

    assert nearly_gone.speed * 0.001 < 1e-6 and not nearly_gone.is_settled(0.001, 1e-6)
    assert just_below.is_settled(0.001, 1e-6)
