"""Who takes part: every draw of participants is made here.

A policy that draws from names is asked at once. One that knows clients by what they sent has a state, which belongs to
the cohort and ends at a fence. Before its first round all members train one epoch, its profile; before every round its
kernel puts the members in order, and reads what the last round has brought if the policy observes rounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from coordinator.engine import events as e
from coordinator.engine.draft import Draft
from coordinator.engine.entities import Cohort, Run, Selecting, Selection, Update
from services.core.errors import InvariantBroken
from services.core.seeds import derive
from services.methods.catalogue import SELECTION
from services.methods.running import draw_named
from services.program.contract import AskClients, Collected, Compute, Computed, Outcome
from services.selection.lots import by_lot
from services.selection.question import Observed, Question, Sent, first_of, order_in, others_in
from services.selection.spec import ProfiledSpec, SelectionSpec
from services.wire.v1.runs import policy_of
from services.wire.v1.work import FIGURES_ONLY

PROFILE = "profile"


@dataclass(frozen=True, slots=True)
class Lottery:
    """Draws the members of rounds for a cohort, or for a group of cohorts that draw together."""

    policy: str
    seed: int
    order: tuple[str, ...] = ()
    """The order of the cohort's members, where the policy's kernel has made one."""

    def draw(self, candidates: Sequence[str], k: int, round: int) -> list[str]:
        """The k candidates that take part, in name order."""
        if (by_names := draw_named(self.policy)) is not None:
            return by_names(candidates, k, self.seed, round)
        return first_of(self.order, candidates, k) if self.order else by_lot(candidates, k, self.seed, round)


def lottery_of(run: Run, where: str) -> Lottery:
    """Where policies draw from names: `where` is the group of cohorts."""
    return Lottery(policy_of(run.spec.selection).policy, _seed(run, where))


def lottery_for(draft: Draft, cohort: Cohort, ask: AskClients | None = None) -> Lottery:
    """For a round of a cohort, by the policy that the asking names or by the run's."""
    run = draft.state.runs[cohort.run_id]
    policy = policy_of(run.spec.selection) if ask is None else policy_for(run, ask)
    known = known_for(cohort, policy)
    return Lottery(policy.policy, _seed(run, cohort.name), () if known is None else known.order)


def known_for(cohort: Cohort, policy: SelectionSpec) -> Selection | None:
    """What the cohort's selection knows, if it is this policy's."""
    is_own = cohort.selection is not None and cohort.selection.policy == policy.model_dump(mode="json")
    return cohort.selection if is_own else None


def policy_for(run: Run, ask: AskClients) -> SelectionSpec:
    return policy_of(ask.selection if ask.selection is not None else run.spec.selection)


def first_step(draft: Draft, cohort: Cohort, ask: AskClients) -> AskClients | Compute | None:
    """What is to be done before the members of this round can be drawn: a profile, a kernel, or nothing."""
    run = draft.state.runs[cohort.run_id]
    policy = policy_for(run, ask)
    if not _selects(cohort, ask) or SELECTION[policy.policy].order is None:
        return None
    known = known_for(cohort, policy)
    if known is not None:
        return None if known.failed is not None else _compute(draft, cohort, ask, known, ())
    if not isinstance(policy, ProfiledSpec):
        return _compute(draft, cohort, ask, Selection(policy.model_dump(mode="json")), ())
    names = tuple(draft.active_names(cohort.id))
    return AskClients(
        PROFILE,
        ask.round,
        ask.model,
        len(names),
        quorum=1,
        deadline_s=policy.profile_deadline_s,
        clients=names,
        local=run.spec.local.model_copy(update={"epochs": 1}),
        close_at_deadline=True,
    )


def next_step(draft: Draft, cohort: Cohort, selecting: Selecting, outcome: Outcome) -> Compute | None:
    """What follows the outcome of such a step: the kernel after the profile; None: the members are in order."""
    policy = policy_for(draft.state.runs[cohort.run_id], selecting.held)
    known = known_for(cohort, policy) or Selection(policy.model_dump(mode="json"))
    match outcome:
        case Collected(updates=updates):
            sent = [(u.client, u.digest, u.num_samples) for u in updates if u.digest is not None]
            profiles = tuple(Sent(client=c, digest=d, num_samples=n) for c, d, n in sent)
            return _compute(draft, cohort, selecting.held, known, profiles)
        case Computed(digest=digest, figures=figures):
            _take_order(draft, cohort, selecting.held, replace(known, observed=None), digest, figures)
            return None
    raise InvariantBroken(f"a selection cannot take {type(outcome).__name__}")


def give_up(draft: Draft, cohort: Cohort, selecting: Selecting, reason: str) -> None:
    """The kernel failed: lots are drawn from now on, until a fence."""
    policy = policy_for(draft.state.runs[cohort.run_id], selecting.held)
    known = known_for(cohort, policy) or Selection(policy.model_dump(mode="json"))
    draft.emit(e.SelectionFailed(cohort.id, replace(known, order=(), observed=None, failed=reason)))


def observe(draft: Draft, cohort: Cohort, base: str, kind: str, updates: Sequence[Update]) -> None:
    """Remember what a round brought, for a policy that learns from it."""
    known = cohort.selection
    if known is None or known.failed is not None or kind in _NOT_SELECTED or not SELECTION[known.name].observes:
        return
    sent = [(u.client_name, u.digest, u.num_samples) for u in updates if u.digest is not None]
    observed = Observed(base=base, updates=[Sent(client=c, digest=d, num_samples=n) for c, d, n in sent])
    draft.emit(e.RoundObserved(cohort.id, observed))


def forget(draft: Draft, cohort: Cohort) -> None:
    """The state's bytes are not needed any more."""
    if cohort.selection is not None and cohort.selection.state is not None:
        draft.request(cohort, "drop-blob", {"digest": cohort.selection.state})


_NOT_SELECTED = FIGURES_ONLY | {PROFILE}


def _selects(cohort: Cohort, ask: AskClients) -> bool:
    """Whether members are drawn for it, and not all of them."""
    is_drawn = ask.clients is None and not cohort.waits_for_group and ask.kind not in _NOT_SELECTED
    return is_drawn and 0 < ask.num_clients < cohort.num_members


def _compute(draft: Draft, cohort: Cohort, ask: AskClients, known: Selection, profiles: tuple[Sent, ...]) -> Compute:
    run = draft.state.runs[cohort.run_id]
    policy = policy_for(run, ask)
    question = Question(
        policy=policy.model_dump(mode="json"),
        members=draft.active_names(cohort.id),
        num_clients=ask.num_clients,
        seed=_seed(run, cohort.name),
        round=ask.round,
        model=ask.model,
        architecture=run.spec.model,
        validation=run.spec.validation.data,
        state=known.state,
        clients=list(known.clients),
        profiles=list(profiles),
        observed=known.observed,
    )
    started_from = tuple(policy.blobs().values()) if known.state is None else ()
    kernel = SELECTION[policy.policy].order
    if kernel is None:
        raise InvariantBroken(f"selection {policy.policy} has no kernel")
    return Compute(kernel, question.model_dump(mode="json"), (*question.inputs, *started_from))


def _take_order(
    draft: Draft, cohort: Cohort, ask: AskClients, known: Selection, digest: str | None, figures: Mapping[str, float]
) -> None:
    """A kernel that wrote no state keeps the one it has."""
    if digest is not None:
        if digest != known.state:
            forget(draft, cohort)
        rows = tuple(sorted({*known.clients, *draft.active_names(cohort.id)}))
        known = replace(known, state=digest, clients=rows)
    known = replace(known, order=order_in(figures))
    draft.emit(e.MembersOrdered(cohort.id, ask.round, known, others_in(figures)))


def _seed(run: Run, where: str) -> int:
    return derive(run.spec.seed, "selection", where)
