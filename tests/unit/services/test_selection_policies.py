from collections import Counter
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.selection.policies import POLICIES, round_robin, uniform
from services.wire.v1.runs import RunSpec

NAMES = [f"client-{i:02}" for i in range(10)]
members = st.lists(st.sampled_from(NAMES), unique=True)


def test_every_policy_a_run_may_name_exists() -> None:
    assert set(get_args(RunSpec.model_fields["selection"].annotation)) == set(POLICIES)


@pytest.mark.parametrize("name", POLICIES)
@given(members=members, k=st.integers(1, 12), seed=st.integers(0, 2**63 - 1), round=st.integers(0, 1000))
def test_policies_return_k_distinct_members_in_name_order(
    name: str, members: list[str], k: int, seed: int, round: int
) -> None:
    chosen = POLICIES[name](members, k, seed, round)
    assert len(chosen) == min(k, len(members))
    assert chosen == sorted(set(chosen))
    assert set(chosen) <= set(members)
    assert chosen == POLICIES[name](members[::-1], k, seed, round)


@given(k=st.integers(1, 9), seed=st.integers(0, 100), leaver=st.sampled_from(NAMES))
def test_uniform_keeps_the_others_when_a_member_leaves(k: int, seed: int, leaver: str) -> None:
    before = uniform(NAMES, k, seed, 1)
    after = uniform([name for name in NAMES if name != leaver], k, seed, 1)
    assert set(before) - {leaver} <= set(after)


def test_uniform_asks_everyone_about_equally_often() -> None:
    counts = Counter(name for round in range(2000) for name in uniform(NAMES, 3, 0, round))
    assert all(480 < counts[name] < 720 for name in NAMES)


def test_uniform_draws_differ_between_rounds_and_seeds() -> None:
    assert len({tuple(uniform(NAMES, 3, seed, round)) for seed in range(3) for round in range(3)}) > 5


def test_round_robin_reaches_everyone_before_anyone_twice() -> None:
    assert sorted(name for round in range(5) for name in round_robin(NAMES, 2, 0, round)) == NAMES
