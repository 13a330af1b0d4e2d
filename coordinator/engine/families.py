"""A run as a family of cohorts: forming it, drawing for it, merging it.

Two things cross from one cohort to another: a merge (published, never trained on) and a re-initialisation (a cohort
restarts from cohorts whose members are subsets of its own). Both name their sources, so lineage knows them.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from coordinator.engine import events as e
from coordinator.engine.draft import Draft
from coordinator.engine.entities import ENDED, Cohort, CohortKind, CohortPhase, Member, Run, StartFrom, State
from coordinator.engine.selection import lottery_of
from services.core.model_figures import accuracy_of
from services.core.seeds import derive
from services.program.contract import Source
from services.topology.cohorts import CohortPlan, check_sizes, plan_cohorts
from services.topology.spec import Clusters, Isolated

MERGED = "merged"
TRAINING: frozenset[CohortPhase] = frozenset({"starting", "waiting", "asking", "computing"})
NEWCOMER = "newcomer"
"""The program of a cohort in which one client is measured before it joins a cluster."""


@dataclass(frozen=True, slots=True)
class NewCohort:
    """A cohort that is about to be formed."""

    name: str
    kind: CohortKind
    members: Sequence[tuple[str, UUID]]
    """Name and id of each client."""
    program: str
    parent_id: UUID | None = None
    group: str = ""
    joined: Container[str] = ()
    """The members who were not there from the beginning, by name."""
    round: int = 0
    """The round that the cohort counts on from."""
    sources: tuple[Source, ...] = ()
    """The models that it starts from, instead of the initial one."""


def form(draft: Draft, run: Run, names: list[str], client_ids: Mapping[str, UUID]) -> None:
    """Form the run's first cohorts; clusters that depend on a profile come later."""
    topology = run.spec.topology
    if isinstance(topology, Clusters) and topology.assignment != "random":
        check_sizes(topology, len(names))
        members = [(name, client_ids[name]) for name in names]
        form_one(draft, run, NewCohort("profile", "profile", members, program="profile"))
    else:
        _form_all(draft, run, plan_cohorts(topology, names, _seed(run)), client_ids)


def form_clusters(draft: Draft, run: Run, assignment: Mapping[str, tuple[int, ...]]) -> None:
    client_ids = {m.name: m.client_id for m in draft.state.members.values() if _run_of(draft.state, m) == run.id}
    active = {m.name for m in draft.state.members.values() if _run_of(draft.state, m) == run.id and m.active}
    present = {name: indices for name, indices in assignment.items() if name in active}
    _form_all(draft, run, plan_cohorts(run.spec.topology, sorted(present), _seed(run), assignment=present), client_ids)


def _seed(run: Run) -> int:
    return derive(run.spec.seed, "clusters")


def drawn_together(draft: Draft, run: Run, group: str, round: int) -> set[str]:
    """One draw per round for the cohorts of a group, over all its first members, past ones included: whoever leaves is
    not replaced, so that cohorts without the leaver go on exactly as before. Who joined later is drawn as if it were
    the only one that did, and displaces nobody."""
    return draft.of_members((run.id, group, round), lambda: _draw_together(draft, run, group, round))


def _draw_together(draft: Draft, run: Run, group: str, round: int) -> set[str]:
    together = {c.id for c in draft.state.cohorts.values() if c.run_id == run.id and c.group == group}
    members = [m for m in draft.state.members.values() if m.cohort_id in together]
    joined = {m.name for m in members if m.joined}
    first = sorted({m.name for m in members} - joined)

    def draw(names: list[str]) -> set[str]:
        num_clients = getattr(run.spec.training, "clients_per_round", None) or len(names)
        return set(lottery_of(run, group).draw(names, num_clients, round))

    return draw(first) | {name for name in joined if name in draw(sorted([*first, name]))}


def source(draft: Draft, cohort: Cohort) -> Source:
    """A cohort's head as a source, weighted by the samples of its active members."""
    assert cohort.head_id is not None and cohort.head_digest is not None, "a source without a model"
    members = [m for m in draft.members_of(cohort.id) if m.active]
    samples = sum(draft.state.samples.get((cohort.id, m.client_id), 0) for m in members)
    return Source(cohort.head_id, cohort.head_digest, float(max(1, samples)))


def merge_sources(draft: Draft, run: Run) -> list[Source]:
    """What the run's merged model is to be made of now: the head of every top-level line that has been trained."""
    tops = [c for c in cohorts_of(draft.state, run.id) if c.parent_id is None and c.kind in ("line", "root", "leaf")]
    heads = [c for c in tops if c.phase != "retired" and is_trained(draft.state, c)]
    if run.spec.topology.kind in ("clusters", "isolated") and getattr(run.spec.topology, "merge", "") == "best":
        heads = sorted(heads, key=lambda c: (-_accuracy(draft.state, c), c.name))[:1]
    return [source(draft, c) for c in sorted(heads, key=lambda c: c.name)]


def is_trained(state: State, cohort: Cohort) -> bool:
    """Whether its head is more than an initial model, or than what a method has mended so far. One that joined later
    counts rounds it did not train."""
    if cohort.unlearning is not None:
        return False
    return cohort.head_id is not None and cohort.round > 0 and state.checkpoints[cohort.head_id].kind != "init"


def profile_of(state: State, run_id: UUID) -> Cohort | None:
    """The cohort whose profiling round the run's clusters are formed from."""
    return next((c for c in state.cohorts.values() if c.run_id == run_id and c.program == "profile"), None)


def merged_cohort(state: State, run_id: UUID) -> Cohort | None:
    return next((c for c in state.cohorts.values() if c.run_id == run_id and c.kind == "merge"), None)


def refresh_merge(draft: Draft, run: Run) -> bool:
    """Start making the merged model anew if it is not what it should be; True when there is something to wait for."""
    merged = merged_cohort(draft.state, run.id)
    if merged is None or run.status in ENDED:
        return False
    if is_merging(draft.state, run):
        return True
    wanted = merge_sources(draft, run)
    if not wanted or _is_made_of(draft.state, merged, wanted):
        return False
    draft.emit(e.CohortRestarted(merged.id, tuple(wanted), merged.round + 1))
    return True


def is_merging(state: State, run: Run) -> bool:
    merged = merged_cohort(state, run.id)
    return merged is not None and run.status not in ENDED and merged.phase in ("starting", "computing")


def in_step_with(state: State, cohort: Cohort) -> list[Cohort]:
    """The cohorts whose rounds it waits for: its own, and in lock-step those of its group."""
    if not cohort.is_lockstep:
        return [cohort]
    return [c for c in cohorts_of(state, cohort.run_id) if c.is_lockstep and c.group == cohort.group]


def _is_made_of(state: State, merged: Cohort, wanted: list[Source]) -> bool:
    made_of = {p.parent_id for p in state.parents.values() if p.checkpoint_id == merged.head_id}
    return merged.head_id is not None and made_of == {source.checkpoint_id for source in wanted}


def _accuracy(state: State, cohort: Cohort) -> float:
    head = state.checkpoints.get(cohort.head_id) if cohort.head_id is not None else None
    return (accuracy_of(head.metrics) if head is not None else None) or 0.0


def cohorts_of(state: State, run_id: UUID) -> list[Cohort]:
    return sorted((c for c in state.cohorts.values() if c.run_id == run_id), key=lambda c: c.name)


def _run_of(state: State, member: Member) -> UUID:
    return state.cohorts[member.cohort_id].run_id


def _form_all(draft: Draft, run: Run, plans: Iterable[CohortPlan], client_ids: Mapping[str, UUID]) -> None:
    ids: dict[str, UUID] = {}
    for plan in plans:
        new = NewCohort(
            plan.name,
            plan.kind,
            [(name, client_ids[name]) for name in plan.members],
            program=run.spec.training.algorithm,
            parent_id=ids[plan.parent] if plan.parent is not None else None,
            group=plan.group,
        )
        ids[plan.name] = form_one(draft, run, new)
    if isinstance(run.spec.topology, Clusters | Isolated):
        form_one(draft, run, NewCohort(MERGED, "merge", (), program="merge"))


def _left_out(state: State, cohort: Cohort) -> set[UUID]:
    return {x.client_id for x in state.members.values() if x.cohort_id == cohort.id and not x.allotted}


def form_one(draft: Draft, run: Run, new: NewCohort) -> UUID:
    cohort_id = draft.new_id()
    # Clusters go on with who serves the run since the period began. A tree has thousands of cohorts and no profile.
    measured = profile_of(draft.state, run.id) if isinstance(run.spec.topology, Clusters) else None
    left_out = _left_out(draft.state, measured) if measured is not None else set()
    rows = tuple(
        Member(cohort_id, client_id, name, joined=name in new.joined, allotted=client_id not in left_out)
        for name, client_id in new.members
    )
    allotment = measured.allotment if measured is not None and new.kind != "merge" else None
    if allotment is not None:
        allotment = replace(allotment, num_clients=sum(row.allotted for row in rows))
    cohort = Cohort(
        id=cohort_id,
        run_id=run.id,
        name=new.name,
        epoch=0,
        phase="finished" if new.kind == "merge" else "starting",
        program=new.program,
        num_members=len(rows),
        kind=new.kind,
        parent_id=new.parent_id,
        group=new.group,
        is_lockstep=new.kind in ("root", "inner", "leaf") and run.spec.topology.kind != "isolated",
        pending=StartFrom(new.sources) if new.sources else None,
        round=new.round,
        allotment=allotment,
    )
    draft.emit(e.CohortFormed(cohort, rows))
    return cohort.id
