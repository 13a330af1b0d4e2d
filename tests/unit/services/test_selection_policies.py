from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.methods.catalogue import SELECTION
from services.methods.running import draw_named
from services.selection.round_robin.plan import draw as round_robin
from services.selection.uniform.plan import draw as uniform
from services.wire.v1.runs import RunSpec, policy_of

NAMES = [f"client-{i:02}" for i in range(10)]
members = st.lists(st.sampled_from(NAMES), unique=True)


@pytest.mark.parametrize("name", [*SELECTION])
def test_a_run_names_a_policy_or_gives_it_with_its_parameters(name: str) -> None:
    given = {"name": "run", "model": {"name": "mlp"}, "validation": {"data": "sha256:" + "0" * 64}}
    by_name = RunSpec.model_validate({**given, "selection": name})
    in_full = RunSpec.model_validate({**given, "selection": {"policy": name}})
    assert policy_of(by_name.selection) == policy_of(in_full.selection)
    assert by_name.selection == name, "what an operator wrote is what is stored and shown"


@pytest.mark.parametrize("name", [name for name, policy in SELECTION.items() if policy.draw is not None])
@given(members=members, k=st.integers(1, 12), seed=st.integers(0, 2**63 - 1), round=st.integers(0, 1000))
def test_policies_return_k_distinct_members_in_name_order(
    name: str, members: list[str], k: int, seed: int, round: int
) -> None:
    draw = draw_named(name)
    assert draw is not None
    chosen = draw(members, k, seed, round)
    assert len(chosen) == min(k, len(members))
    assert chosen == sorted(set(chosen))
    assert set(chosen) <= set(members)
    assert chosen == draw(members[::-1], k, seed, round)


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


def test_draws_are_those_of_ever() -> None:
    """A line that is trained again must draw what it drew: these were drawn before policies were methods."""
    assert uniform(NAMES, 3, 7, 1) == ["client-03", "client-06", "client-09"]
    assert round_robin(NAMES, 4, 7, 2) == ["client-00", "client-01", "client-08", "client-09"]
