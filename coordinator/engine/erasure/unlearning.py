"""The stage in which an approximate method runs: what the method is told, gathered at the fence."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from coordinator.engine.entities import Checkpoint, Cohort, Contribution, Erasure, State, Update
from coordinator.engine.erasure.stages import Recover, Unlearn
from services.program.contract import Erasure as Facts
from services.program.contract import Movement, Participant


def models_of(state: State, cohort: Cohort) -> list[Checkpoint]:
    """The models that led to a cohort's head, the oldest first. Where a method mended a quarantined model, the list
    begins with the mended one."""
    models: list[Checkpoint] = []
    checkpoint = state.checkpoints.get(cohort.head_id) if cohort.head_id is not None else None
    while checkpoint is not None and checkpoint.superseded_by is None:
        models.append(checkpoint)
        checkpoint = state.checkpoints.get(checkpoint.base_id) if checkpoint.base_id is not None else None
    return models[::-1]


def recallable(state: State, models: list[Checkpoint]) -> dict[int, UUID]:
    """The models, by round, of which updates of others than the leavers are stored."""
    return {c.round: c.id for c in models if c.id in state.archives and state.archives[c.id].num_stored}


def lost(state: State, models: list[Checkpoint]) -> list[int]:
    """Rounds that others than the leavers contributed to, and of which nothing is stored any more."""
    archives = ((c.round, state.archives.get(c.id)) for c in models)
    return [round for round, found in archives if found is not None and found.num_others and not found.num_stored]


def recalled_digest(state: State, contribution: Contribution, update: Update | None) -> str | None:
    """The digest of what is stored of an update, as it came or as a sealed copy; None: nothing is stored."""
    digest = contribution.digest or (update.digest if update is not None else None)
    if update is None or digest is None:
        return None
    return digest if update.stored or digest in state.kept.get(update.id, ()) else None


def gather(
    state: State, erasure: Erasure, cohort: Cohort, leavers: frozenset[UUID], *, method: str, seed: int, then: Recover
) -> Unlearn:
    """The stage of a cohort that is about to be fenced, and so still has its head."""
    models = models_of(state, cohort)
    head = models[-1]
    # What a method made of a model that another client is in is not undone: that model must not be read again.
    was_mended = head.kind == "forgotten"
    base = state.checkpoints.get(head.base_id) if head.base_id is not None and not was_mended else None
    names = {m.client_id: m.name for m in state.members.values() if m.cohort_id == cohort.id}
    rounds = recallable(state, models)
    facts = Facts(
        leavers=tuple(sorted(names[client_id] for client_id in leavers if client_id in names)),
        params=dict(erasure.params),
        seed=seed,
        initial=_initial(state, cohort, models),
        head=head.digest,
        round=head.round,
        base=base.digest if base is not None and base.stored else None,
        scale=head.scale,
        participants=() if was_mended else _participants(state, head, leavers, names),
        history=tuple(sorted(rounds)),
        residuals=cohort.residuals,
        movements=_movements(state, models, leavers, names),
        checkpoints={c.round: c.digest for c in models if c.stored},
    )
    forgets = tuple(sorted(client_id for client_id in leavers if client_id in names))
    return Unlearn(erasure.id, method, head.id, forgets, rounds, facts, then)


def _initial(state: State, cohort: Cohort, models: list[Checkpoint]) -> str:
    own = [c for c in state.checkpoints.values() if c.cohort_id == cohort.id and c.kind == "init"]
    return min(own, key=lambda c: c.epoch).digest if own else models[0].digest


def _participants(
    state: State, head: Checkpoint, leavers: frozenset[UUID], names: Mapping[UUID, str]
) -> tuple[Participant, ...]:
    """The leavers among those who contributed to the head."""
    total = state.archives[head.id].weight if head.id in state.archives else 0.0
    found = []
    for c in state.contributions.values():
        if c.checkpoint_id == head.id and c.client_id in leavers and total > 0:
            digest = recalled_digest(state, c, state.updates.get(c.update_id))
            found.append(Participant(names[c.client_id], digest, share=c.weight / total * (c.factor or 1.0)))
    return tuple(sorted(found, key=lambda one: one.client))


def _movements(
    state: State, models: list[Checkpoint], leavers: frozenset[UUID], names: Mapping[UUID, str]
) -> tuple[Movement, ...]:
    by_id = {c.id: c for c in models}
    found = []
    for c in state.contributions.values():
        checkpoint = by_id.get(c.checkpoint_id)
        if checkpoint is not None and c.client_id in leavers and checkpoint.id in state.archives:
            share = c.weight / state.archives[checkpoint.id].weight
            found.append(Movement(checkpoint.round, names[c.client_id], share, checkpoint.scale, c.distance))
    return tuple(sorted(found, key=lambda one: (one.round, one.client)))
