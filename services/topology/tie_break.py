"""The one assignment among equally good ones: pairs are taken in row-major order wherever one of the best has them.

So the first client gets the lowest cluster index that any best assignment gives it, then the second, and so on. The
result depends on the levels and bounds alone, not on which optimal flow a solver happens to find.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

import numpy as np

from services.core.errors import InvariantBroken
from services.topology.level_flow import Bools, Face, Ints, find_patterns, solve

SINK: Final = -1  # in a path: a column grows or shrinks within its bounds


def choose(face: Face, row_of_client_K: Ints) -> list[tuple[int, ...]]:
    """The clusters of each client, ascending."""
    patterns = find_patterns(face, np.zeros_like(face.free_RC))
    low_first_PC = np.broadcast_to(np.arange(face.free_RC.shape[1]), patterns.free_PC.shape)
    flow_PC = solve(face, replace(patterns, cost_PC=low_first_PC))  # any flow would do; this one needs few changes
    undecided = _Undecided(
        flow_PC=flow_PC,
        num_clients_P=patterns.num_clients_P.copy(),
        free_PC=patterns.free_PC,
        units_C=face.units_C,
        size_C=flow_PC.sum(axis=0) + face.placed_C,
        lower_C=face.lower_C,
        upper_C=face.upper_C,
    )
    fixed: list[list[int]] = [[] for _ in face.taken_RC]
    for row, column in np.argwhere(face.taken_RC[:, :-1]).tolist():
        fixed[row].append(column)
    pattern_of_row = patterns.of_row_R.tolist()
    chosen: list[tuple[int, ...]] = []
    for row in row_of_client_K.tolist():
        pattern = pattern_of_row[row]
        choice = fixed[row] if pattern < 0 else sorted([*fixed[row], *undecided.decide(pattern)])
        chosen.append(tuple(choice))
    return chosen


@dataclass
class _Undecided:
    """A feasible flow of the clients that were not asked yet; the decided ones still count in `size_C`."""

    flow_PC: Ints
    num_clients_P: Ints
    free_PC: Bools
    units_C: Ints
    size_C: Ints
    lower_C: Ints
    upper_C: Ints
    refused: set[tuple[int, tuple[int, ...]]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.units: list[int] = self.units_C.tolist()
        self.free_columns = [np.nonzero(free_C)[0].tolist() for free_C in self.free_PC[:, :-1]]

    def decide(self, pattern: int) -> list[int]:
        """Take one client out of `pattern` and return its clusters.

        What was refused to an earlier client of the same pattern with the same choices so far is refused to this one
        too: otherwise the two could have changed places.
        """
        share = self._take_share(pattern)
        for column in self.free_columns[pattern]:
            if share[column]:
                continue
            givers = [c for c in range(column + 1, len(share)) if share[c]]
            if not givers:
                break
            key = pattern, tuple(share[: column + 1])
            if key in self.refused:
                continue
            path = self._find_path(column, givers)
            if path is None:
                self.refused.add(key)
                continue
            share[path[-1]] -= 1
            share[column] += 1
            self._push(path, pattern)
        return [column for column, units in enumerate(share[:-1]) if units]

    def _take_share(self, pattern: int) -> list[int]:
        """One client's part of the pattern's flow, low columns first, such that the rest can still be divided."""
        flow, others = self.flow_PC[pattern].tolist(), int(self.num_clients_P[pattern]) - 1
        share = [max(0, units - others * most) for units, most in zip(flow, self.units, strict=True)]
        missing = sum(flow) // (others + 1) - sum(share)
        for column, units in enumerate(flow):
            if missing and units:
                more = min(missing, min(self.units[column], units) - share[column])
                share[column] += more
                missing -= more
        self.flow_PC[pattern] -= share
        self.num_clients_P[pattern] = others
        return share

    def _find_path(self, start: int, goals: list[int]) -> list[int] | None:
        """Columns along which one unit can be passed on from `start` to one of `goals`."""
        sink = len(self.size_C)
        follows_TT = np.zeros((sink + 1, sink + 1), np.bool_)
        has_PC = (self.free_PC & (self.flow_PC > 0)).astype(np.float32)
        room_PC = (self.free_PC & (self.flow_PC < self.num_clients_P[:, None] * self.units_C)).astype(np.float32)
        follows_TT[:-1, :-1] = has_PC.T @ room_PC > 0
        follows_TT[:-1, -1] = self.size_C < self.upper_C
        follows_TT[-1, :-1] = self.size_C > self.lower_C
        came_from = {start: start}
        queue = [start]
        for node in queue:
            for neighbour in np.nonzero(follows_TT[node])[0].tolist():
                if neighbour not in came_from:
                    came_from[neighbour] = node
                    queue.append(neighbour)
        goal = next((goal for goal in goals if goal in came_from), None)
        if goal is None:
            return None
        path = [goal]
        while path[-1] != start:
            path.append(came_from[path[-1]])
        return [SINK if node == sink else node for node in reversed(path)]

    def _push(self, path: list[int], pattern: int) -> None:
        """Make room for the client that moves from the path's last column to its first.

        The others of its pattern will want the same: as many of them as can move along at once.
        """
        movers, most = [], int(self.flow_PC[pattern, path[-1]])
        for a, b in pairwise(path):
            if b == SINK:
                most = min(most, int(self.upper_C[a] - self.size_C[a]) - 1)
            elif a == SINK:
                most = min(most, int(self.size_C[b] - self.lower_C[b]) - 1)
            else:
                room_P = np.where(self.free_PC[:, b], self.num_clients_P * self.units_C[b] - self.flow_PC[:, b], 0)
                can_P = np.where(self.free_PC[:, a], np.minimum(self.flow_PC[:, a], room_P), 0)
                mover = int(can_P.argmax())
                if can_P[mover] < 1:
                    raise InvariantBroken("a path of the residual network has no mover")
                most = 0 if mover == pattern else min(most, int(can_P[mover]) - 1)
                movers.append((mover, a, b))
        room = int(self.num_clients_P[pattern] * self.units_C[path[0]] - self.flow_PC[pattern, path[0]])
        others = max(0, min(most, room))
        self.flow_PC[pattern, path[-1]] -= others
        self.flow_PC[pattern, path[0]] += others
        self.size_C[path[-1]] -= others + 1
        self.size_C[path[0]] += others + 1
        for mover, a, b in movers:
            self.flow_PC[mover, a] -= others + 1
            self.flow_PC[mover, b] += others + 1
            self.size_C[a] -= others + 1
            self.size_C[b] += others + 1
