"""What an approximate method is told about the line that it is to mend: gathered at the fence, kept with the cohort.

While `Cohort.unlearning` is set, the method runs in place of the run's own program. Everything that it names is
quarantined: this program may read it, nobody is served it, and the purge deletes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from coordinator.engine.entities import Checkpoint, Cohort, Contribution, Erasure, State, Update
from services.program.contract import Erasure as Facts
from services.program.contract import Movement, Participant


def line_of(state: State, cohort: Cohort) -> list[Checkpoint]:
    """The models behind a cohort's head, the oldest first; it begins anew where a method mended a quarantined one."""
    line: list[Checkpoint] = []
    checkpoint = state.checkpoints.get(cohort.head_id) if cohort.head_id is not None else None
    while checkpoint is not None and checkpoint.superseded_by is None:
        line.append(checkpoint)
        checkpoint = state.checkpoints.get(checkpoint.base_id) if checkpoint.base_id is not None else None
    return line[::-1]


def recallable(state: State, line: list[Checkpoint]) -> dict[int, UUID]:
    """Rounds of which updates of others are stored, with their models."""
    return {c.round: c.id for c in line if c.id in state.archives and state.archives[c.id].num_stored}


def lost(state: State, line: list[Checkpoint]) -> list[int]:
    """Rounds that others contributed to and of which nothing is stored any more."""
    archives = ((c.round, state.archives.get(c.id)) for c in line)
    return [round for round, found in archives if found is not None and found.num_others and not found.num_stored]


def recalled_digest(state: State, contribution: Contribution, update: Update | None) -> str | None:
    """By which an update is named that is stored, as it came or as a sealed copy; None: it is not."""
    digest = contribution.digest or (update.digest if update is not None else None)
    if update is None or digest is None:
        return None
    return digest if update.stored or digest in state.kept.get(update.id, ()) else None


def gather(
    state: State,
    erasure: Erasure,
    method: str,
    cohort: Cohort,
    leavers: frozenset[UUID],
    *,
    seed: int,
    recovery_rounds: int,
) -> dict[str, Any]:
    """Before the fence: the cohort still has its head."""
    line = line_of(state, cohort)
    head = line[-1]
    # What a method made of a model that another client is in is not undone: that model must not be read again.
    was_mended = head.kind == "forgotten"
    base = state.checkpoints.get(head.base_id) if head.base_id is not None and not was_mended else None
    names = {m.client_id: m.name for m in state.members.values() if m.cohort_id == cohort.id}
    rounds = recallable(state, line)
    facts = {
        "leavers": sorted(names[client_id] for client_id in leavers if client_id in names),
        "params": dict(erasure.params),
        "seed": seed,
        "initial": _initial(state, cohort, line),
        "head": head.digest,
        "round": head.round,
        "base": base.digest if base is not None and base.stored else None,
        "scale": head.scale,
        "participants": [] if was_mended else _participants(state, head, leavers, names),
        "history": sorted(rounds),
        "residuals": cohort.residuals,
        "movements": _movements(state, line, leavers, names),
        "checkpoints": {str(c.round): c.digest for c in line if c.stored},
    }
    return {
        "erasure_id": str(erasure.id),
        "method": method,
        "recovery_rounds": recovery_rounds,
        "head_id": str(head.id),
        "forgets": sorted(str(client_id) for client_id in leavers if client_id in names),
        "rounds": {str(round): str(checkpoint_id) for round, checkpoint_id in rounds.items()},
        "facts": facts,
    }


def facts_of(unlearning: Mapping[str, Any]) -> Facts:
    facts = dict(unlearning["facts"])
    return Facts(
        **{
            **facts,
            "leavers": tuple(facts["leavers"]),
            "participants": tuple(Participant(**row) for row in facts["participants"]),
            "history": tuple(facts["history"]),
            "movements": tuple(Movement(**row) for row in facts["movements"]),
            "checkpoints": {int(round): digest for round, digest in facts["checkpoints"].items()},
        }
    )


def _initial(state: State, cohort: Cohort, line: list[Checkpoint]) -> str:
    own = [c for c in state.checkpoints.values() if c.cohort_id == cohort.id and c.kind == "init"]
    return min(own, key=lambda c: c.epoch).digest if own else line[0].digest


def _participants(
    state: State, head: Checkpoint, leavers: frozenset[UUID], names: Mapping[UUID, str]
) -> list[dict[str, Any]]:
    """The leavers among those in the head's round."""
    total = state.archives[head.id].weight if head.id in state.archives else 0.0
    found = []
    for c in state.contributions.values():
        if c.checkpoint_id == head.id and c.client_id in leavers and total > 0:
            digest = recalled_digest(state, c, state.updates.get(c.update_id))
            found.append(
                {"client": names[c.client_id], "digest": digest, "share": c.weight / total * (c.factor or 1.0)}
            )
    return sorted(found, key=lambda row: str(row["client"]))


def _movements(
    state: State, line: list[Checkpoint], leavers: frozenset[UUID], names: Mapping[UUID, str]
) -> list[dict[str, Any]]:
    by_id = {c.id: c for c in line}
    found = []
    for c in state.contributions.values():
        checkpoint = by_id.get(c.checkpoint_id)
        if checkpoint is not None and c.client_id in leavers and checkpoint.id in state.archives:
            share = c.weight / state.archives[checkpoint.id].weight
            movement = Movement(checkpoint.round, names[c.client_id], share, checkpoint.scale, c.distance)
            found.append({name: getattr(movement, name) for name in ("round", "client", "share", "scale", "distance")})
    return sorted(found, key=lambda row: (row["round"], row["client"]))
