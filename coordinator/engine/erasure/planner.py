"""Which erasure method: what each would redo, and which of those that apply is the cheapest.

The preview shows these options and the fence chooses from them, so that both say the same about the same state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from coordinator.engine.entities import Cohort, Erasure, Run, State
from coordinator.engine.erasure import cuts as plans
from coordinator.engine.erasure import unlearning
from coordinator.engine.messages import FileErasure
from services.history.coverage import FIRST_ROUND, stride
from services.methods.catalogue import UNLEARNING
from services.methods.description import Unlearning

RECOVERY_ROUNDS = 5
"""Rounds of training that a re-initialised line of a completed run gets when the request does not say; never more than
it had."""


@dataclass(frozen=True, slots=True)
class CutCost:
    """What becomes of one cohort, and what that takes."""

    run: Run
    cut: plans.CohortCut
    num_rounds: int
    num_updates: int
    """Client updates that must be retrained."""
    num_bytes: int
    """Models to the clients and updates back; 0 where nothing was measured."""
    num_rounds_kept: int
    """Rounds of training in the model that the cohort goes on from."""


@dataclass(frozen=True, slots=True)
class Option:
    name: str
    method: Unlearning
    costs: tuple[CutCost, ...]
    why_not: str | None

    @property
    def num_updates(self) -> int:
        return sum(cost.num_updates for cost in self.costs)

    def asks_leavers(self, *, audited: bool) -> bool:
        """Whether those who are forgotten have a part in it."""
        return (self.method.needs_leaver or audited) and any(map(_is_mended, self.costs))

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
    """Every method, in the order of the catalogue."""
    return [_option(state, wanted, leavers, name, method) for name, method in UNLEARNING.items()]


def choose(found: Sequence[Option], wanted: str) -> Option:
    """The method that was asked for, if it applies; else the cheapest that does, the first of equals."""
    applicable = [option for option in found if option.why_not is None]
    named = [option for option in applicable if option.name == wanted]
    return named[0] if named else min(applicable, key=lambda option: option.price)


def recovery_rounds(wanted: FileErasure | Erasure, run: Run, cohort: Cohort, method: Unlearning) -> int:
    """Rounds that a re-initialised or unlearned line trains before the request counts as done."""
    if wanted.recovery_rounds is not None:
        return wanted.recovery_rounds
    if method.guarantee == "approximate":
        return min(method.recovery_rounds, cohort.round)
    return min(RECOVERY_ROUNDS, cohort.round) if run.status == "completed" else 0


def _option(
    state: State, wanted: FileErasure | Erasure, leavers: frozenset[UUID], name: str, method: Unlearning
) -> Option:
    if wanted.guarantee == "exact" and method.guarantee != "exact":
        return Option(name, method, (), "it is approximate, and the request asks for exact")
    costs = tuple(
        _cost(state, wanted, leavers, run, cut, method)
        for run in sorted(state.runs.values(), key=lambda run: (run.name, run.id))
        for cut in cuts(state, wanted, leavers, run, method).cuts
    )
    return Option(name, method, costs, _why_not(state, method, wanted, costs))


def cuts(
    state: State, wanted: FileErasure | Erasure, leavers: frozenset[UUID], run: Run, method: Unlearning
) -> plans.Cut:
    return plans.plan(
        state,
        run.id,
        leavers,
        reinitialise=method.needs_sub_cohorts,
        unlearn=method.guarantee == "approximate",
        stay=_stay(wanted),
    )


def _stay(wanted: FileErasure | Erasure) -> bool:
    """Whether the subjects stay: who only forgets samples trains on without them."""
    return wanted.scope == "samples"


def _why_not(state: State, method: Unlearning, wanted: FileErasure | Erasure, costs: Sequence[CutCost]) -> str | None:
    if method.needs_sub_cohorts and not any(cost.cut.action == "re-initialised" for cost in costs):
        return "no cohort with the client has a trained sub-cohort without it to restart from"
    if method.guarantee == "approximate":
        return _why_not_approximate(state, method, wanted, costs)
    return None


def _is_mended(cost: CutCost) -> bool:
    return cost.cut.action == "unlearned"


def _why_not_approximate(
    state: State, method: Unlearning, wanted: FileErasure | Erasure, costs: Sequence[CutCost]
) -> str | None:
    for cost in costs:
        if cost.cut.cohort.unlearning is not None:
            return f"the method of another request is at work in cohort {cost.cut.cohort.name}; wait until it is done"
    mended = [cost.cut.cohort for cost in costs if _is_mended(cost)]
    if wanted.scope == "samples" and method.granularity == "client":
        return "it forgets whole clients only, and the request names samples"
    if not mended:
        return "no model that is trained on has the client in it, so there is nothing to mend"
    has_part = method.needs_leaver or wanted.audit is not None
    if has_part and isinstance(wanted, FileErasure) and wanted.offline:
        return (
            f"it needs the leaver's own worker, and that of {', '.join(wanted.offline)} is not online; start it first"
        )
    for cohort in mended:
        if method.needs_residuals and cohort.residuals is None:
            return f"cohort {cohort.name} keeps no residuals, or lost them in an erasure: run with history.residuals"
        if method.needs_distances and not _is_measured(state, cohort):
            return f"not all rounds of cohort {cohort.name} were measured: run with history.distances from the start"
        if method.needs_history and (missing := _missing_history(state, method, wanted, cohort)):
            return missing
    return None


def _is_measured(state: State, cohort: Cohort) -> bool:
    """Whether the distance of every contribution of the leavers, which are those loaded, is known."""
    line = {c.id for c in unlearning.models_of(state, cohort)}
    return all(c.distance is not None for c in state.contributions.values() if c.checkpoint_id in line)


def _missing_history(state: State, method: Unlearning, wanted: FileErasure | Erasure, cohort: Cohort) -> str | None:
    """Why the stored rounds do not carry a method that walks through them."""
    line = unlearning.models_of(state, cohort)
    rounds, interval = sorted(unlearning.recallable(state, line)), method.stride(wanted.params)
    if not rounds:
        return f"cohort {cohort.name} kept no updates: run with history.updates, or with retention.updates all"
    if rounds[0] != FIRST_ROUND:
        return f"the stored updates of cohort {cohort.name} begin with round {rounds[0]}, and {FIRST_ROUND} is needed"
    lost = unlearning.lost(state, line)
    missed = [round for round in lost if (round - FIRST_ROUND) % interval == 0]
    if missed:
        named = ", ".join(map(str, missed[:5])) + (", …" if len(missed) > 5 else "")
        way_out = f": give {method.stride_parameter} {stride(lost)}" if method.stride_parameter is not None else ""
        return f"the updates of rounds {named} of cohort {cohort.name} are not stored{way_out}"
    return None


def _cost(
    state: State,
    wanted: FileErasure | Erasure,
    leavers: frozenset[UUID],
    run: Run,
    cut: plans.CohortCut,
    method: Unlearning,
) -> CutCost:
    num_rounds = _rounds_to_redo(state, wanted, run, cut, method)
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
    """How many members stay; before the first round, as many are taken to be asked in each."""
    members = [m for m in state.members.values() if m.cohort_id == cohort.id and m.active]
    return sum(member.client_id not in leavers for member in members)


def _rounds_to_redo(
    state: State, wanted: FileErasure | Erasure, run: Run, cut: plans.CohortCut, method: Unlearning
) -> int:
    """Nothing is trained again in runs that were cancelled or failed."""
    if run.status in ("cancelled", "failed"):
        return 0
    match cut.action:
        case "rolled-back":
            return cut.cohort.round - (cut.clean.round if cut.clean is not None else 0)
        case "re-initialised":
            return recovery_rounds(wanted, run, cut.cohort, method)
        case "unlearned":
            walked = len(unlearning.recallable(state, unlearning.models_of(state, cut.cohort)))
            walked = walked // method.stride(wanted.params) if method.needs_history else 0
            return walked + recovery_rounds(wanted, run, cut.cohort, method)
        case "retired":
            return 0
