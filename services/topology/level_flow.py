"""Every assignment whose sorted vector of levels is lexicographically smallest, found exactly in integers.

A transportation problem: each client sends `max_memberships` units to the clusters (one at most to each) and to an
extra last column for memberships that it does not use; columns hold between `lower` and `upper` units. From the highest
level down, min-cost flow minimises the number of pairs at that level, and the problem is restricted to the optimal
face: an arc with non-zero reduced cost keeps its bound, the columns' slack arcs included. Clients with the same open
arcs and the same costs are interchangeable, so each flow is solved over such patterns and not over clients; patterns
are few, however many clients there are.

Shapes: R distinct rows of levels, P patterns, C columns (clusters and the extra one), T = C + 1 (with the sink).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from services.core.errors import InvariantBroken

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

UNUSED_LEVEL: Final = -1  # an unused membership is better than a pair of level 0: ties go to the fewest pairs
_UNREACHABLE: Final = np.iinfo(np.int64).max // 4
_CHUNK_BITS: Final = 40


@dataclass
class Face:
    """The optimal assignments: `taken` pairs are in all of them, `free` ones in some, the others in none.

    `units_C` is how many units one client can send to a column, `lower_C` and `upper_C` bound all units in a column.
    """

    num_clients_R: Ints
    free_RC: Bools
    taken_RC: Bools
    units_C: Ints
    lower_C: Ints
    upper_C: Ints
    supply_R: Ints  # units per client that are still to be placed on free arcs
    placed_C: Ints  # units that the taken arcs put into each column, of all clients

    def close(self, reduced_RC: Ints) -> None:
        """Fix every free arc with a negative (taken) or positive (empty) reduced cost, and what then has no choice."""
        self._take(self.free_RC & (reduced_RC < 0))
        self.free_RC &= reduced_RC == 0
        self._take(self.free_RC & (self.free_RC @ self.units_C == self.supply_R)[:, None])
        self.free_RC &= (self.supply_R > 0)[:, None]

    def _take(self, arcs_RC: Bools) -> None:
        rows = np.nonzero(arcs_RC.any(axis=1))[0]
        units_RC = arcs_RC[rows] * self.units_C
        self.placed_C += self.num_clients_R[rows] @ units_RC
        self.supply_R[rows] -= units_RC.sum(axis=1)
        self.taken_RC |= arcs_RC
        self.free_RC &= ~arcs_RC


@dataclass(frozen=True)
class Patterns:
    """Rows that the flow cannot tell apart, counted together; -1 for rows without a choice left."""

    of_row_R: Ints
    num_clients_P: Ints
    free_PC: Bools
    cost_PC: Ints
    supply_P: Ints


def optimal_face(levels_RN: Ints, num_clients_R: Ints, *, min_size: int, max_size: int, max_memberships: int) -> Face:
    """`levels_RN` holds distinct rows, `num_clients_R` how many clients have each. The bounds must be feasible."""
    num_rows, num_clusters = levels_RN.shape
    total = int(num_clients_R.sum())
    levels_RC = np.column_stack([levels_RN, np.full(num_rows, UNUSED_LEVEL)])
    free_RC = np.ones(levels_RC.shape, np.bool_)
    free_RC[:, -1] = max_memberships > 1
    face = Face(
        num_clients_R=num_clients_R,
        free_RC=free_RC,
        taken_RC=np.zeros_like(free_RC),
        units_C=np.array([1] * num_clusters + [max_memberships - 1], np.int64),
        lower_C=np.array([min_size] * num_clusters + [0], np.int64),
        upper_C=np.array([min(max_size, total)] * num_clusters + [total * (max_memberships - 1)], np.int64),
        supply_R=np.full(num_rows, max_memberships),
        placed_C=np.zeros(num_clusters + 1, np.int64),
    )
    face.close(np.zeros(levels_RC.shape, np.int64))
    present = np.unique(levels_RC[free_RC])
    for level in present[:0:-1]:  # the number of pairs at the lowest level follows from all the others
        at_level_RC = face.free_RC & (levels_RC == level)
        if at_level_RC.any():
            _restrict(face, at_level_RC)
    return face


def find_patterns(face: Face, cost_RC: Bools) -> Patterns:
    live = np.nonzero(face.free_RC.any(axis=1))[0]
    of_live = face.supply_R[live]
    bits = np.hstack([face.free_RC[live], cost_RC[live]])
    for start in range(0, bits.shape[1], _CHUNK_BITS):
        chunk = bits[:, start : start + _CHUNK_BITS]
        packed = chunk @ (np.int64(1) << np.arange(chunk.shape[1], dtype=np.int64))
        of_live = np.unique((of_live << _CHUNK_BITS) | packed, return_inverse=True)[1]
    _, first = np.unique(of_live, return_index=True)
    example_P = live[first]
    of_row_R = np.full(len(face.free_RC), -1)
    of_row_R[live] = of_live
    num_clients_P = np.zeros(len(example_P), np.int64)
    np.add.at(num_clients_P, of_live, face.num_clients_R[live])
    return Patterns(
        of_row_R, num_clients_P, face.free_RC[example_P], cost_RC[example_P].astype(np.int64), face.supply_R[example_P]
    )


def solve(face: Face, patterns: Patterns) -> Ints:
    """A cheapest flow on the free arcs, [P, C], by OR-Tools."""
    from ortools.graph.python import min_cost_flow  # type: ignore[import-untyped]

    num_patterns, num_columns = patterns.free_PC.shape
    lower_C, upper_C = np.maximum(face.lower_C - face.placed_C, 0), face.upper_C - face.placed_C
    sink = num_patterns + num_columns
    tail, column = np.nonzero(patterns.free_PC)
    capacity = patterns.num_clients_P[tail] * face.units_C[column]
    supply_P = patterns.supply_P * patterns.num_clients_P
    columns = np.arange(num_columns) + num_patterns
    flow = min_cost_flow.SimpleMinCostFlow()
    arcs = flow.add_arcs_with_capacity_and_unit_cost(
        tail, column + num_patterns, capacity, patterns.cost_PC[tail, column]
    )
    flow.add_arcs_with_capacity_and_unit_cost(
        columns, np.full(num_columns, sink), upper_C - lower_C, np.zeros(num_columns, np.int64)
    )
    demand = np.concatenate([lower_C, [supply_P.sum() - lower_C.sum()]])
    flow.set_nodes_supplies(np.arange(sink + 1), np.concatenate([supply_P, -demand]))
    status: Any = flow.solve()
    if status != flow.OPTIMAL:
        raise InvariantBroken(f"min-cost flow over {num_patterns} patterns ended with {status}")
    flow_PC = np.zeros(patterns.free_PC.shape, np.int64)
    flow_PC[tail, column] = flow.flows(arcs)
    return flow_PC


def _restrict(face: Face, at_level_RC: Bools) -> None:
    """Keep only the assignments with the fewest pairs at this level."""
    patterns = find_patterns(face, at_level_RC)
    flow_PC = solve(face, patterns)
    potential_T = _potentials(face, patterns, flow_PC)
    column_C, sink = potential_T[:-1], potential_T[-1]
    reach_PC = np.where(flow_PC > 0, column_C - patterns.cost_PC, _UNREACHABLE)
    reduced_PC = patterns.cost_PC + reach_PC.min(axis=1, keepdims=True) - column_C
    face.close(reduced_PC[patterns.of_row_R])
    slack_C = column_C - sink
    face.upper_C = np.where(slack_C > 0, face.lower_C, face.upper_C)
    face.lower_C = np.where(slack_C < 0, face.upper_C, face.lower_C)


def _potentials(face: Face, patterns: Patterns, flow_PC: Ints) -> Ints:
    """Shortest distances in the residual network, contracted to columns and sink: Bellman–Ford over their T nodes.

    A unit goes from column a to column b through a pattern that has one in a and room in b.
    """
    num_columns = flow_PC.shape[1]
    capacity_PC = patterns.num_clients_P[:, None] * face.units_C
    room_PC = patterns.free_PC & (flow_PC < capacity_PC)
    cost_into_PC = np.where(room_PC, patterns.cost_PC, _UNREACHABLE)
    length_TT = np.full((num_columns + 1, num_columns + 1), _UNREACHABLE)
    for a in range(num_columns):
        has_P = flow_PC[:, a] > 0
        if has_P.any():
            length_TT[a, :-1] = (cost_into_PC[has_P] - patterns.cost_PC[has_P, a, None]).min(axis=0)
    size_C = flow_PC.sum(axis=0) + face.placed_C
    length_TT[:-1, -1] = np.where(size_C < face.upper_C, 0, _UNREACHABLE)
    length_TT[-1, :-1] = np.where(size_C > face.lower_C, 0, _UNREACHABLE)
    potential_T = np.zeros(num_columns + 1, np.int64)
    for _ in range(num_columns + 2):
        shorter_T = np.minimum(potential_T, (potential_T[:, None] + length_TT).min(axis=0))
        if (shorter_T == potential_T).all():
            return potential_T
        potential_T = shorter_T
    raise InvariantBroken("the flow was not optimal: its residual network has a negative cycle")
