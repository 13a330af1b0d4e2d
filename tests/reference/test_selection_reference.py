"""Selection against slow references: k-center by trying every set of centres, k-means with means that are written down,
the double-DQN target client by client, and its steps by torch."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from services.selection.clusters.kernels import k_means
from services.selection.dqn.learning import GAMMA, SYNC_EVERY, Learner, Memory, features, reward
from services.selection.dqn.network import LEARNING_RATE, Doubles, Layers, forward
from services.selection.k_center.kernels import farthest_first, nearest
from services.selection.profile import squared_distances

SEEDS = range(12)


def points(seed: int, num: int = 9, size: int = 4) -> Doubles:
    return np.random.default_rng(seed).standard_normal((num, size))


def apart(one: Doubles, other: Doubles) -> float:
    return float(((one - other) ** 2).sum())


@pytest.mark.parametrize("seed", SEEDS)
def test_distances_follow_from_products(seed: int) -> None:
    x = points(seed)
    slow = np.array([[apart(one, other) for other in x] for one in x])
    np.testing.assert_allclose(squared_distances(x @ x.T), slow, atol=1e-9)


@pytest.mark.parametrize("num_centres", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", SEEDS)
def test_greedy_centres_are_at_most_twice_as_far_as_the_best_of_all(seed: int, num_centres: int) -> None:
    x = points(seed)
    distance = squared_distances(x @ x.T)

    def radius(centres: tuple[int, ...] | list[int]) -> float:
        return float(max(min(apart(one, x[c]) for c in centres) ** 0.5 for one in x))

    best = min(map(radius, itertools.combinations(range(len(x)), num_centres)))
    assert best <= radius(farthest_first(distance, num_centres, first=0)) + 1e-9 <= 2 * best + 2e-9


@pytest.mark.parametrize("seed", SEEDS)
def test_each_centre_is_the_farthest_from_those_before_it_and_everybody_is_with_the_nearest(seed: int) -> None:
    x = points(seed)
    centres = farthest_first(squared_distances(x @ x.T), 4, first=seed % len(x))
    for number in range(1, 4):
        gaps = [min(apart(one, x[c]) for c in centres[:number]) for one in x]
        assert gaps[centres[number]] == pytest.approx(max(gaps))
    labels = nearest(squared_distances(x @ x.T), centres)
    for one, label in zip(x, labels.tolist(), strict=True):
        assert apart(one, x[centres[label]]) == pytest.approx(min(apart(one, x[c]) for c in centres))


def test_clients_that_are_alike_still_make_as_many_groups_as_wanted() -> None:
    distance = np.zeros((5, 5))
    centres = farthest_first(distance, 3, first=2)
    assert sorted(set(centres)) == sorted(centres)
    assert len(set(nearest(distance, centres).tolist())) == 3
    assert len(set(k_means(np.ones((5, 5)), 3, seed=1).tolist())) == 3


@pytest.mark.parametrize("seed", SEEDS)
def test_k_means_leaves_everybody_with_the_nearest_mean(seed: int) -> None:
    x = points(seed, num=20)
    labels = k_means(x @ x.T, 4, seed)
    means = [x[labels == label].mean(axis=0) for label in range(4)]
    for one, label in zip(x, labels.tolist(), strict=True):
        assert apart(one, means[label]) == pytest.approx(min(apart(one, mean) for mean in means))


def test_k_means_finds_groups_that_are_there() -> None:
    rng = np.random.default_rng(3)
    x = np.concatenate([centre + 0.01 * rng.standard_normal((5, 2)) for centre in ([0, 0], [9, 0], [0, 9])])
    labels = k_means(x @ x.T, 3, seed=1).tolist()
    assert [len(set(labels[first : first + 5])) for first in (0, 5, 10)] == [1, 1, 1]
    assert len(set(labels)) == 3


def slow_value(layers: Layers, x: Doubles) -> Doubles:
    for number, (weights, bias) in enumerate(layers):
        x = np.array([sum(x[i] * weights[i, j] for i in range(len(x))) + bias[j] for j in range(len(bias))])
        x = x if number == len(layers) - 1 else np.array([max(value, 0.0) for value in x])
    return x


def learner(preset: str, num_clients: int = 5, seed: int = 1) -> Learner:
    fresh = Learner.fresh(preset, num_clients, seed)  # type: ignore[arg-type]
    other = Learner.fresh(preset, num_clients, seed + 1)  # type: ignore[arg-type]
    rng = np.random.default_rng(seed)
    memory = Memory.empty(num_clients)
    for _ in range(4):
        s, later = rng.uniform(-1, 1, (2, num_clients))
        memory = memory.with_round(s, [0, 3], float(rng.uniform(-1, 0)), later)
    return Learner(fresh.preset, fresh.policy, other.policy, fresh.adam, memory)


def slow_values(preset: str, layers: Layers, s: Doubles) -> list[float]:
    if preset == "paper":
        return [float(q) for q in slow_value(layers, s)]
    pooled = [s.mean(), s.std(), s.min(), s.max()]
    return [float(slow_value(layers, np.array([own, *pooled]))[0]) for own in s]


@pytest.mark.parametrize("preset", ["shared", "paper"])
def test_the_target_is_the_target_networks_value_of_the_policy_networks_choice(preset: str) -> None:
    one = learner(preset)
    next_BK, reward_B = one.memory.next_MK, one.memory.reward_M
    found = one.targets(reward_B, next_BK)
    chose_otherwise = 0
    for row, s in enumerate(next_BK):
        of_policy, of_target = slow_values(preset, one.policy, s), slow_values(preset, one.target, s)
        best = of_policy.index(max(of_policy))
        chose_otherwise += of_target[best] < max(of_target) - 1e-12
        assert found[row] == pytest.approx(reward_B[row] + GAMMA * of_target[best])
    assert chose_otherwise, "else a plain DQN would pass as well"


def as_torch(layers: Layers) -> nn.Sequential:
    modules: list[nn.Module] = []
    for weights, bias in layers:
        linear = nn.Linear(len(weights), len(bias), dtype=torch.float64)
        with torch.no_grad():
            linear.weight.copy_(torch.from_numpy(weights.T))
            linear.bias.copy_(torch.from_numpy(bias))
        modules += [linear, nn.ReLU()]
    return nn.Sequential(*modules[:-1])


@pytest.mark.parametrize("preset", ["shared", "paper"])
def test_steps_are_those_of_torchs_adam_on_the_squared_error(preset: str) -> None:
    one = learner(preset)
    network, steps = as_torch(one.policy), 3
    optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE)
    rng = np.random.default_rng(9)
    expected = one
    for _ in range(steps):
        rows = rng.choice(len(one.memory.action_M), 8, replace=False)
        actions = torch.from_numpy(one.memory.action_M[rows])
        target = torch.from_numpy(expected.targets(one.memory.reward_M[rows], one.memory.next_MK[rows]))
        states = one.memory.state_MK[rows]
        given = states if preset == "paper" else features(states)[np.arange(8), one.memory.action_M[rows]]
        out = network(torch.from_numpy(given))
        chosen = out.gather(1, actions[:, None])[:, 0] if preset == "paper" else out[:, 0]
        optimizer.zero_grad()
        nn.functional.mse_loss(chosen, target).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        linears = [module for module in network if isinstance(module, nn.Linear)]
        layers = [(m.weight.detach().numpy().T.copy(), m.bias.detach().numpy().copy()) for m in linears]
        expected = Learner(one.preset, layers, one.target, one.adam, one.memory)
    found = one.learnt(steps, seed=9)
    x = np.random.default_rng(2).standard_normal((6, one.policy[0][0].shape[0]))
    np.testing.assert_allclose(forward(found.policy, x)[-1], forward(expected.policy, x)[-1], rtol=1e-9, atol=1e-12)


def test_the_target_network_follows_every_so_many_steps() -> None:
    one = learner("shared")
    before = one.learnt(SYNC_EVERY - 1, seed=1)
    after = one.learnt(SYNC_EVERY, seed=1)
    assert before.target is one.target
    assert after.target is after.policy


def test_the_reward_is_zero_at_the_target_and_falls_below_it() -> None:
    assert reward(0.9, 0.9) == 0.0
    assert reward(0.5, 0.9) == pytest.approx(64**-0.4 - 1)
    assert -1 < reward(0.0, 0.9) < reward(0.5, 0.9) < 0 < reward(1.0, 0.9)
