"""Double deep Q-learning (van Hasselt et al., AAAI 2016) over sets of clients.

The state is one figure for each client, and an action is one client that took part, so a round of L clients is L
transitions with one reward. `shared`: one scorer looks at a client's own figure and at the whole state pooled, and so
fits any set of clients. `paper`: one network from all figures to a value for each client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from services.selection.dqn.network import (
    Adam,
    Doubles,
    Layers,
    forward,
    from_tensors,
    gradients,
    initial,
    sizes_of,
    to_tensors,
)
from services.tensors.codec import Array

Ints = npt.NDArray[np.int64]
Preset = Literal["shared", "paper"]

NUM_FEATURES: Final = 5
GAMMA: Final = 0.95
REWARD_BASE: Final = 64.0
SYNC_EVERY: Final = 10
MOST_REMEMBERED: Final = 1000
BATCH_SIZE: Final = 8
TRAINED_STEPS: Final = 500
"""A network that has taken fewer steps is not asked."""
_HIDDEN: Final[Mapping[Preset, tuple[int, int]]] = {"shared": (64, 64), "paper": (8, 256)}


def reward(accuracy: float, target: float) -> float:
    return float(REWARD_BASE ** (accuracy - target) - 1.0)


def features(state_BK: Doubles) -> Doubles:
    """Features of each client in each state: its own figure, and mean, spread, least and largest of all. [B, K, F]"""
    pooled = [state_BK.mean(axis=1), state_BK.std(axis=1), state_BK.min(axis=1), state_BK.max(axis=1)]
    every = [np.broadcast_to(one[:, None], state_BK.shape) for one in pooled]
    return np.stack([state_BK, *every], axis=2)


@dataclass(frozen=True)
class Memory:
    """The newest transitions (s, a, r, s'), the oldest first."""

    state_MK: Doubles
    action_M: Ints
    reward_M: Doubles
    next_MK: Doubles

    @classmethod
    def empty(cls, num_clients: int) -> Memory:
        none = np.zeros((0, num_clients))
        return cls(none, np.zeros(0, np.int64), np.zeros(0), none)

    def with_round(self, state_K: Doubles, actions: Sequence[int], earned: float, next_K: Doubles) -> Memory:
        """One transition for each client that took part."""
        num = len(actions)
        return Memory(
            np.concatenate([self.state_MK, np.tile(state_K, (num, 1))])[-MOST_REMEMBERED:],
            np.concatenate([self.action_M, np.array(actions, np.int64)])[-MOST_REMEMBERED:],
            np.concatenate([self.reward_M, np.full(num, earned)])[-MOST_REMEMBERED:],
            np.concatenate([self.next_MK, np.tile(next_K, (num, 1))])[-MOST_REMEMBERED:],
        )

    def for_rows(self, at_K: Ints, num_rows: int) -> Memory:
        """The same among more clients; row k of before is `at_K[k]` now. Newcomers have the figure 0."""
        state_MK, next_MK = np.zeros((2, len(self.action_M), num_rows))
        state_MK[:, at_K], next_MK[:, at_K] = self.state_MK, self.next_MK
        return replace(self, state_MK=state_MK, next_MK=next_MK, action_M=at_K[self.action_M])


@dataclass(frozen=True)
class Learner:
    preset: Preset
    policy: Layers
    target: Layers
    adam: Adam
    memory: Memory

    @classmethod
    def fresh(cls, preset: Preset, num_clients: int, seed: int) -> Learner:
        layers = initial(_sizes(preset, num_clients), seed)
        return cls(preset, layers, layers, Adam.fresh(layers), Memory.empty(num_clients))

    @property
    def is_trained(self) -> bool:
        return self.adam.num_steps >= TRAINED_STEPS

    def values(self, state_BK: Doubles, layers: Layers | None = None) -> Doubles:
        """Q of every client in every state, [B, K]."""
        layers = self.policy if layers is None else layers
        if self.preset == "paper":
            return forward(layers, state_BK)[-1]
        return forward(layers, features(state_BK).reshape(-1, NUM_FEATURES))[-1].reshape(state_BK.shape)

    def targets(self, reward_B: Doubles, next_BK: Doubles) -> Doubles:
        """r + γ·Q_target(s', argmax_a Q_policy(s', a))."""
        best_B = self.values(next_BK).argmax(axis=1)
        later_B = self.values(next_BK, self.target)[np.arange(len(best_B)), best_B]
        return np.asarray(reward_B + GAMMA * later_B, np.float64)

    def learnt(self, num_steps: int, seed: int) -> Learner:
        """The learner after this many steps, each over a batch that is drawn from the memory."""
        found, rng = self, np.random.default_rng(seed)
        for _ in range(num_steps):
            rows = rng.choice(len(self.memory.action_M), min(BATCH_SIZE, len(self.memory.action_M)), replace=False)
            found = found._step(rows)
        return found

    def _step(self, rows: Ints) -> Learner:
        memory = self.memory
        state_BK, action_B = memory.state_MK[rows], memory.action_M[rows]
        target_B = self.targets(memory.reward_M[rows], memory.next_MK[rows])
        at = np.arange(len(rows))
        if self.preset == "paper":
            given, output = forward(self.policy, state_BK), action_B
        else:
            given, output = forward(self.policy, features(state_BK)[at, action_B]), np.zeros(len(rows), np.int64)
        slope = np.zeros_like(given[-1])
        slope[at, output] = 2.0 * (given[-1][at, output] - target_B) / len(rows)
        policy, adam = self.adam.step(self.policy, gradients(self.policy, given, slope))
        is_due = adam.num_steps % SYNC_EVERY == 0
        return replace(self, policy=policy, target=policy if is_due else self.target, adam=adam)

    @property
    def tensors(self) -> dict[str, Array]:
        memory = self.memory
        return {
            **self.network_tensors,
            **to_tensors("adam.first", self.adam.first),
            **to_tensors("adam.second", self.adam.second),
            "memory.state": memory.state_MK,
            "memory.action": memory.action_M,
            "memory.reward": memory.reward_M,
            "memory.next": memory.next_MK,
        }

    @property
    def network_tensors(self) -> dict[str, Array]:
        steps = np.array([self.adam.num_steps], np.int64)
        return {**to_tensors("policy", self.policy), **to_tensors("target", self.target), "num_steps": steps}

    @classmethod
    def read(cls, preset: Preset, tensors: Mapping[str, Array], num_clients: int) -> Learner | None:
        """The learner that a state holds, of this or of another set of clients; None where its network does not fit. Of
        a network alone, and of one that saw another number of clients, the moments and the memory begin anew."""
        policy, target = from_tensors("policy", tensors), from_tensors("target", tensors)
        wanted = _sizes(preset, num_clients)
        if not policy or not target or sizes_of(policy) != wanted or sizes_of(target) != wanted:
            return None
        steps = tensors.get("num_steps")
        num_steps = int(steps[0]) if steps is not None and steps.size else 0
        first, second = from_tensors("adam.first", tensors), from_tensors("adam.second", tensors)
        adam = Adam(first, second, num_steps) if first and second else replace(Adam.fresh(policy), num_steps=num_steps)
        memory = Memory.empty(num_clients)
        remembered = tensors.get("memory.state")
        if remembered is not None and remembered.shape[1:] == (num_clients,):
            memory = Memory(remembered, tensors["memory.action"], tensors["memory.reward"], tensors["memory.next"])
        return cls(preset, policy, target, adam, memory)


def _sizes(preset: Preset, num_clients: int) -> tuple[int, ...]:
    ends = (num_clients, num_clients) if preset == "paper" else (NUM_FEATURES, 1)
    return (ends[0], *_HIDDEN[preset], ends[1])
