"""Which erasure method: what each would redo, and which of those that apply is the cheapest.

The preview shows these options and the fence chooses from them, so that both say the same about the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from coordinator.engine.entities import GIVEN_UP, Cohort, Erasure, Run, State
from coordinator.engine.erasure import cuts as plans
from coordinator.engine.erasure import unlearning
from coordinator.engine.messages import FileErasure
from services.history.coverage import FIRST_ROUND, stride
from services.methods.catalogue import RECOVERY, SELECTION, UNLEARNING
from services.methods.description import Unlearning
from services.methods.references import resolve
from services.methods.running import objection
from services.selection.spec import SelectionSpec
from services.wire.v1.runs import Selection, check_observed, policy_of

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
    recovery_rounds: int = 0
    """How many of the rounds belong to the recovery."""
    added_rounds: float = 0.0
    """What the recovery's method costs beyond ordinary training, in rounds of it."""
    added_updates: float = 0.0
    """The same, in updates."""
    num_profiles: int = 0
    """Profiles of clients to be made, each one epoch, for a selection policy that knows clients by their updates."""


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
    def work(self) -> float:
        """The clients' work, in updates of the run's own training: a profile is one epoch of one."""
        profiles = sum(cost.num_profiles / cost.run.spec.local.epochs for cost in self.costs)
        added = sum(cost.added_updates for cost in self.costs)
        return self.num_updates * self.method.work_per_update + profiles + added

    @property
    def price(self) -> tuple[float, int, int]:
        """What options are compared by: the clients' work, then the bytes, then what is lost."""
        return (
            self.work,
            self.num_bytes,
            -sum(cost.num_rounds_kept for cost in self.costs),
        )


def options(state: State, wanted: FileErasure | Erasure, leavers: frozenset[UUID]) -> list[Option]:
    """Every method, in the order of the catalogue. Those that cut alike share the plan: a run may have thousands of
    cohorts."""
    planned: dict[tuple[object, ...], plans.Cut] = {}

    def cuts_of(run: Run, method: Unlearning) -> plans.Cut:
        way = (run.id, method.needs_sub_cohorts, method.guarantee == "approximate")
        if way not in planned:
            planned[way] = cuts(state, wanted, leavers, run, method)
        return planned[way]

    return [_option(state, wanted, leavers, name, cuts_of) for name in UNLEARNING]


def choose(found: Sequence[Option], wanted: str) -> Option:
    """The method that was asked for, if it applies; else the cheapest that does, the first of equals."""
    applicable = [option for option in found if option.why_not is None]
    named = [option for option in applicable if option.name == wanted]
    return named[0] if named else min(applicable, key=lambda option: option.price)


def recovery_rounds(wanted: FileErasure | Erasure, run: Run, cohort: Cohort, method: Unlearning) -> int:
    """Rounds that a re-initialised or unlearned line trains before the request counts as done."""
    if wanted.recovery_rounds is not None:
        return wanted.recovery_rounds
    if num_rounds := rounds_after_retraining(wanted):
        return num_rounds
    if method.guarantee == "approximate":
        return min(method.recovery_rounds, cohort.round)
    return min(RECOVERY_ROUNDS, cohort.round) if run.status == "completed" else 0


def rounds_after_retraining(wanted: FileErasure | Erasure) -> int:
    """Rounds of the recovery method that the request names; a plain recovery is over when the line has the round again
    that it had."""
    method = RECOVERY.get(wanted.recovery.method) if wanted.recovery is not None else None
    if method is None:
        return 0
    return method.recovery_rounds if wanted.recovery_rounds is None else wanted.recovery_rounds


def _option(
    state: State,
    wanted: FileErasure | Erasure,
    leavers: frozenset[UUID],
    name: str,
    cuts_of: Callable[[Run, Unlearning], plans.Cut],
) -> Option:
    method = UNLEARNING[name]
    if wanted.guarantee == "exact" and method.guarantee != "exact":
        return Option(name, method, (), "it is approximate, and the request asks for exact")
    costs = tuple(
        _cost(state, wanted, leavers, run, cut, method)
        for run in sorted(state.runs.values(), key=lambda run: (run.name, run.id))
        for cut in cuts_of(run, method).cuts
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
    for cost in costs:
        if _is_mended(cost) and (reason := objection(method, wanted.params, cost.run.spec.model)):
            return reason
    for cohort in mended:
        if unfit := _unfit_selection(wanted, state.runs[cohort.run_id], method):
            return unfit
        if method.needs_residuals and cohort.residuals is None:
            return f"cohort {cohort.name} keeps no residuals, or lost them in an erasure: run with history.residuals"
        if method.needs_distances and not _is_measured(state, cohort):
            return f"not all rounds of cohort {cohort.name} were measured: run with history.distances from the start"
        if method.needs_history and (missing := _missing_history(state, method, wanted, cohort)):
            return missing
    return None


def _selection_of(wanted: FileErasure | Erasure, run: Run, method: Unlearning) -> SelectionSpec | None:
    """The policy by which the method's own program asks clients."""
    if method.selects is None:
        return None
    params = wanted.params if wanted.method == method.name else {}
    found: Selection | None = resolve(method.selects)(params, run.spec.selection)
    return None if found is None else policy_of(found)


def _unfit_selection(wanted: FileErasure | Erasure, run: Run, method: Unlearning) -> str | None:
    policy = _selection_of(wanted, run, method)
    if policy is None or not SELECTION[policy.policy].observes:
        return None
    try:
        check_observed(policy.policy, run.spec)
    except ValueError as error:
        return f"run {run.name}: {error}"
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
    recovery = _recovery_rounds(wanted, run, cut, method)
    added = _added_rounds(wanted, run, recovery)
    num_remaining = _num_remaining(state, cut.cohort, gone)
    is_profiled = _is_profiled(wanted, run, cut, method, num_rounds) and per_round < num_remaining
    num_profiles = num_remaining if is_profiled else 0
    return CutCost(
        run=run,
        cut=cut,
        num_rounds=num_rounds,
        num_updates=num_updates,
        num_bytes=round((num_updates + num_profiles) * traffic.bytes_per_update) if traffic is not None else 0,
        num_profiles=num_profiles,
        num_rounds_kept=max((state.cohorts[c].round for c in cut.sources), default=cut.clean.round if cut.clean else 0),
        recovery_rounds=recovery,
        added_rounds=added,
        added_updates=added * per_round,
    )


def _is_profiled(
    wanted: FileErasure | Erasure, run: Run, cut: plans.CohortCut, method: Unlearning, num_rounds: int
) -> bool:
    """Whether the policy that draws clients for the rounds to redo has to learn to know them first."""
    if not num_rounds:
        return False
    is_mended = cut.action == "unlearned"
    recovers = not is_mended or recovery_rounds(wanted, run, cut.cohort, method) > 0
    policies = [policy_of(run.spec.selection) if recovers else None]
    policies.append(_selection_of(wanted, run, method) if is_mended else None)
    return any(SELECTION[one.policy].order is not None for one in policies if one is not None)


def _num_remaining(state: State, cohort: Cohort, leavers: frozenset[UUID]) -> int:
    """How many members stay; before the first round, as many are taken to be asked in each."""
    found = (state.members.get((cohort.id, client_id)) for client_id in leavers)
    return cohort.num_members - sum(member is not None and member.active for member in found)


def _rounds_to_redo(
    state: State, wanted: FileErasure | Erasure, run: Run, cut: plans.CohortCut, method: Unlearning
) -> int:
    """Nothing is trained again in runs that were cancelled or failed."""
    if run.status in GIVEN_UP:
        return 0
    recovery = _recovery_rounds(wanted, run, cut, method)
    match cut.action:
        case "rolled-back":
            return cut.cohort.round - (cut.clean.round if cut.clean is not None else 0) + recovery
        case "unlearned":
            walked = len(unlearning.recallable(state, unlearning.models_of(state, cut.cohort)))
            return (walked // method.stride(wanted.params) if method.needs_history else 0) + recovery
        case "re-initialised" | "retired":
            return recovery


def _recovery_rounds(wanted: FileErasure | Erasure, run: Run, cut: plans.CohortCut, method: Unlearning) -> int:
    if run.status in GIVEN_UP or cut.action == "retired":
        return 0
    if cut.action == "rolled-back":
        return rounds_after_retraining(wanted)
    return recovery_rounds(wanted, run, cut.cohort, method)


def _added_rounds(wanted: FileErasure | Erasure, run: Run, num_rounds: int) -> float:
    """What so many rounds of the request's recovery cost beyond ordinary training, with what clients prepare once."""
    method = RECOVERY.get(wanted.recovery.method) if wanted.recovery is not None else None
    if method is None or wanted.recovery is None or num_rounds == 0:
        return 0.0
    once = method.preparation_epochs(wanted.recovery.params) / max(1, run.spec.local.epochs)
    return num_rounds * (method.work_per_update - 1) + once
