"""What an erasure does to the cohorts of a run, as a plan that both the preview and the fence make.

The law: the cohorts that contain the client are discarded or rolled back, every other cohort keeps its bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from coordinator.engine.entities import GIVEN_UP, Action, Checkpoint, Cohort, State
from coordinator.engine.families import is_trained


@dataclass(frozen=True, slots=True)
class CohortCut:
    """What becomes of one cohort."""

    cohort: Cohort
    action: Action
    clean: Checkpoint | None = None
    """rolled-back: the newest model without the leavers; None: start from scratch. unlearned: what it falls back on."""
    sources: tuple[UUID, ...] = ()
    """re-initialised: the cohorts that it restarts from."""


@dataclass(frozen=True, slots=True)
class Cut:
    """What becomes of a run. `cuts` go from the smallest cohort to the largest."""

    cuts: tuple[CohortCut, ...]
    moved: dict[UUID, UUID | None] = field(default_factory=dict)
    """Cohorts that take their parent's place, with the new parent."""
    tainted: frozenset[UUID] = frozenset()
    """Checkpoints with a leaver in their ancestry."""


def plan(
    state: State,
    run_id: UUID,
    leavers: frozenset[UUID],
    *,
    reinitialise: bool,
    unlearn: bool = False,
    stay: bool = False,
) -> Cut:
    """`reinitialise`: restart from surviving sub-cohorts where there are any; else roll back in the own lineage, as
    always where nothing is trained any more. `unlearn`: let an approximate method mend the models with a leaver in them
    instead. `stay`: the leavers give up what they contributed so far and remain members."""
    reinitialise = reinitialise and state.runs[run_id].status not in GIVEN_UP
    unlearn = unlearn and state.runs[run_id].status not in GIVEN_UP
    tainted = tainted_checkpoints(state, leavers)
    cohorts = [c for c in state.cohorts.values() if c.run_id == run_id and c.phase != "retired"]
    lines = sorted((c for c in cohorts if c.kind != "merge"), key=lambda c: c.name)
    if _begins_with(state, run_id, tainted):
        return Cut(tuple(CohortCut(c, "retired") for c in lines), {}, tainted)  # there is nothing clean to start from
    gone = frozenset[UUID]() if stay else leavers
    had = {m.cohort_id for m in state.members.values() if m.client_id in leavers}
    remaining = Counter(m.cohort_id for m in state.members.values() if m.active and m.client_id not in gone)
    parent_of = {c.id: c.parent_id for c in lines}
    size = Counter(m.cohort_id for m in state.members.values())  # past members too: only so is a child never larger
    affected = sorted((c for c in lines if c.id in had), key=lambda c: (size[c.id], c.kind == "root", c.name))
    cuts: dict[UUID, CohortCut] = {}
    retired: set[UUID] = set()
    moved: dict[UUID, UUID | None] = {}
    for cohort in affected:
        children = sorted(c for c, p in parent_of.items() if p == cohort.id and c not in retired)
        if not remaining[cohort.id]:
            cuts[cohort.id] = CohortCut(cohort, "retired")
        elif reinitialise and len(children) == 1 and cohort.parent_id is not None:
            cuts[cohort.id] = CohortCut(cohort, "retired")
            moved[children[0]] = parent_of[children[0]] = parent_of[cohort.id]
        elif reinitialise and (sources := _surviving(state, children, cuts, lines)):
            cuts[cohort.id] = CohortCut(cohort, "re-initialised", sources=sources)
        else:
            action: Action = "unlearned" if unlearn and cohort.head_id in tainted else "rolled-back"
            cuts[cohort.id] = CohortCut(cohort, action, clean=newest_clean(state, cohort, tainted))
        if cuts[cohort.id].action == "retired":
            retired.add(cohort.id)
    return Cut(tuple(cuts.values()), moved, tainted)


def plan_again(state: State, run_id: UUID, given_up: frozenset[UUID], spared: UUID) -> Cut:
    """What becomes of a run when models are given up after its fence: whatever stands on them, or is about to, is
    rolled back, but for the cohort that is `spared`. There is nothing clean to start from where the run began with
    one."""
    cohorts = [c for c in state.cohorts.values() if c.run_id == run_id and c.phase != "retired" and c.id != spared]
    lines = sorted((c for c in cohorts if c.kind != "merge"), key=lambda c: c.name)
    if _begins_with(state, run_id, given_up):
        return Cut(tuple(CohortCut(c, "retired") for c in lines), {}, given_up)
    standing = [
        c for c in lines if c.head_id in given_up or not given_up.isdisjoint(s.checkpoint_id for s in c.sources)
    ]
    back = (CohortCut(c, "rolled-back", clean=newest_clean(state, c, given_up)) for c in standing)
    return Cut(tuple(back), {}, given_up)


def _begins_with(state: State, run_id: UUID, models: frozenset[UUID]) -> bool:
    """Whether a run began with one of these models, or is about to: one that was created a moment ago, in the same
    transaction, has not published its initial model yet."""
    own = [c for c in state.checkpoints.values() if c.kind == "init" and c.run_id == run_id]
    if own:
        return any(c.id in models for c in own)
    same = [c for c in state.checkpoints.values() if c.digest == state.runs[run_id].spec.init]
    return bool(same) and _first_of(same).id in models


def _surviving(
    state: State, children: list[UUID], cuts: dict[UUID, CohortCut], lines: list[Cohort]
) -> tuple[UUID, ...]:
    """The maximal untouched sub-cohorts that have a trained model."""
    by_id = {c.id: c for c in lines}
    found: list[UUID] = []
    for child in children:
        cut = cuts.get(child)
        if cut is None:
            if is_trained(state, by_id[child]):
                found.append(child)
        elif cut.action == "re-initialised":
            found += cut.sources
    return tuple(sorted(found, key=lambda c: by_id[c].name))


def tainted_checkpoints(state: State, leavers: frozenset[UUID]) -> frozenset[UUID]:
    """Every checkpoint with an update of a leaver in it or in any of its ancestors, also in a run that was started
    from such a model. What a method made of a model to forget a client is not tainted by that client any more."""
    if any(checkpoint.forgets for checkpoint in state.checkpoints.values()):
        return frozenset().union(*(_tainted(state, frozenset({client})) for client in leavers))
    return _tainted(state, leavers)


def _tainted(state: State, leavers: frozenset[UUID]) -> frozenset[UUID]:
    """The checkpoints with one of the leavers in them. Where models forget some clients, it is asked for one client."""
    direct = {c.checkpoint_id for c in state.contributions.values() if c.client_id in leavers}
    names = {str(client) for client in leavers}
    concerned = {c.id: c for c in state.checkpoints.values() if names.isdisjoint(c.forgets)}
    return _made_of(state, direct, concerned)


def made_of(state: State, models: Iterable[UUID]) -> frozenset[UUID]:
    """These checkpoints and every one that stands on them, in whichever cohort or run, however it was made: nobody can
    say of a model that was given up what is left in it."""
    return _made_of(state, models, state.checkpoints)


def _made_of(state: State, models: Iterable[UUID], concerned: Mapping[UUID, Checkpoint]) -> frozenset[UUID]:
    """Those of the concerned that are among the models or stand on one through others that are concerned."""
    same = _by_digest(state)
    below: dict[UUID, list[UUID]] = {}
    for edge in state.parents.values():
        below.setdefault(edge.parent_id, []).append(edge.checkpoint_id)
    for checkpoint in concerned.values():
        above = _models_started_from(checkpoint, same[checkpoint.digest])
        for one in above if checkpoint.base_id is None else (*above, checkpoint.base_id):
            below.setdefault(one, []).append(checkpoint.id)
    tainted, reached = set[UUID](), list(models)
    while reached:
        found = reached.pop()
        if found in concerned and found not in tainted:
            tainted.add(found)
            reached += below.get(found, ())
    return frozenset(tainted)


def _by_digest(state: State) -> dict[str, dict[UUID, list[Checkpoint]]]:
    """Models with the same bytes, by their run."""
    found: dict[str, dict[UUID, list[Checkpoint]]] = {}
    for checkpoint in state.checkpoints.values():
        found.setdefault(checkpoint.digest, {}).setdefault(checkpoint.run_id, []).append(checkpoint)
    return found


def _models_started_from(checkpoint: Checkpoint, same: dict[UUID, list[Checkpoint]]) -> list[UUID]:
    """The published model that an initial one repeats: the oldest of another run with the same bytes, if it came
    before. A round without an answer repeats them, too, and comes after the run's own initial model."""
    if checkpoint.kind != "init" or same.keys() == {checkpoint.run_id}:
        return []
    others = [c for run_id, found in same.items() if run_id != checkpoint.run_id for c in found]
    older = [c for c in others if c.created_at <= checkpoint.created_at]
    if all(c.kind == "init" for c in older):
        return []
    return [_first_of(older).id]


def _first_of(same: Sequence[Checkpoint]) -> Checkpoint:
    """Of models with the same bytes, the one that others with them stand on."""
    return min(same, key=lambda c: (c.created_at, c.kind == "init", c.id))


def newest_clean(state: State, cohort: Cohort, tainted: frozenset[UUID]) -> Checkpoint | None:
    """Walk back from the head to the first model without a leaver that may be served."""
    checkpoint = state.checkpoints.get(cohort.head_id) if cohort.head_id is not None else None
    while checkpoint is not None and (checkpoint.id in tainted or checkpoint.superseded_by is not None):
        checkpoint = state.checkpoints.get(checkpoint.base_id) if checkpoint.base_id is not None else None
    return checkpoint
