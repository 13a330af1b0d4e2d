"""Which erasure method: what each would redo, and which of those that apply is the cheapest.

The preview shows these options and the fence chooses from them, so that both say the same about the same state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from coordinator.engine import surgery
from coordinator.engine.entities import Cohort, Erasure, Run, State
from coordinator.engine.messages import FileErasure
from services.unlearning.methods import METHODS, Method

AUTO = "auto"
RECOVERY_ROUNDS = 5
"""Rounds of training that a re-initialised line of a completed run gets when the request does not say; never more than
it had."""


@dataclass(frozen=True, slots=True)
class CutCost:
    """What becomes of one cohort, and what that takes."""

    run: Run
    cut: surgery.CohortCut
    num_rounds: int
    num_updates: int
    """Of clients, to be made again."""
    num_bytes: int
    """Models to the clients and updates back; 0 where nothing was measured."""
    num_rounds_kept: int
    """Rounds of training in the model that the cohort goes on from."""


@dataclass(frozen=True, slots=True)
class Option:
    name: str
    method: Method
    costs: tuple[CutCost, ...]
    why_not: str | None

    @property
    def num_updates(self) -> int:
        return sum(cost.num_updates for cost in self.costs)

    @property
    def num_bytes(self) -> int:
        return sum(cost.num_bytes for cost in self.costs)

    @property
    def price(self) -> tuple[float, int, int]:
        """What options are compared by: the clients' work, then the bytes, then what is lost."""
        return (
            self.num_updates * self.method.work_per_update,
            self.num_bytes,
            -sum(cost.num_rounds_kept for cost in self.costs),
        )


def options(state: State, wanted: FileErasure | Erasure, leavers: frozenset[UUID]) -> list[Option]:
    """Every method, in the order of METHODS."""
    return [_option(state, wanted, leavers, name, method) for name, method in METHODS.items()]


def choose(found: Sequence[Option], wanted: str) -> Option:
    """The method that was asked for, if it applies; else the cheapest that does, the first of equals."""
    applicable = [option for option in found if option.why_not is None]
    named = [option for option in applicable if option.name == wanted]
    return named[0] if named else min(applicable, key=lambda option: option.price)


def recovery_rounds(wanted: FileErasure | Erasure, run: Run, cohort: Cohort) -> int:
    """Rounds that a re-initialised line trains before the request counts as done."""
    if wanted.recovery_rounds is not None:
        return wanted.recovery_rounds
    return min(RECOVERY_ROUNDS, cohort.round) if run.status == "completed" else 0


def _option(state: State, wanted: FileErasure | Erasure, leavers: frozenset[UUID], name: str, method: Method) -> Option:
    costs = tuple(
        _cost(state, wanted, leavers, run, cut)
        for run in sorted(state.runs.values(), key=lambda run: (run.name, run.id))
        for cut in surgery.plan(state, run.id, leavers, reinitialise=method.needs_sub_cohorts, stay=_stay(wanted)).cuts
    )
    return Option(name, method, costs, _why_not(method, wanted, costs))


def _stay(wanted: FileErasure | Erasure) -> bool:
    """Those whose samples are forgotten train on without them."""
    return wanted.scope == "samples"


def _why_not(method: Method, wanted: FileErasure | Erasure, costs: Sequence[CutCost]) -> str | None:
    if wanted.guarantee == "exact" and method.guarantee != "exact":
        return "it is approximate, and the request asks for exact"
    if method.needs_sub_cohorts and not any(cost.cut.action == "re-initialised" for cost in costs):
        return "no cohort with the client has a trained sub-cohort without it to restart from"
    return None


def _cost(
    state: State, wanted: FileErasure | Erasure, leavers: frozenset[UUID], run: Run, cut: surgery.CohortCut
) -> CutCost:
    num_rounds = _rounds_to_redo(wanted, run, cut)
    traffic = state.traffic.get(cut.cohort.id)
    gone = frozenset[UUID]() if _stay(wanted) else leavers
    per_round = _num_remaining(state, cut.cohort, gone) if traffic is None else traffic.updates_per_round
    num_updates = round(num_rounds * per_round)
    return CutCost(
        run=run,
        cut=cut,
        num_rounds=num_rounds,
        num_updates=num_updates,
        num_bytes=round(num_updates * traffic.bytes_per_update) if traffic is not None else 0,
        num_rounds_kept=max((state.cohorts[c].round for c in cut.sources), default=cut.clean.round if cut.clean else 0),
    )


def _num_remaining(state: State, cohort: Cohort, leavers: frozenset[UUID]) -> int:
    """Before the first round: everybody who stays."""
    members = [m for m in state.members.values() if m.cohort_id == cohort.id and m.active]
    return sum(member.client_id not in leavers for member in members)


def _rounds_to_redo(wanted: FileErasure | Erasure, run: Run, cut: surgery.CohortCut) -> int:
    """Nothing is trained again in runs that were cancelled or failed."""
    if run.status in ("cancelled", "failed"):
        return 0
    match cut.action:
        case "rolled-back":
            return cut.cohort.round - (cut.clean.round if cut.clean is not None else 0)
        case "re-initialised":
            return recovery_rounds(wanted, run, cut.cohort)
        case "retired":
            return 0
