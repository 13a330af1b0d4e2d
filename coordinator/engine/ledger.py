"""What clients earn and pay where a federation divides them among jobs: an entry for what each answer cost, and one for
what the round that used it paid."""

from __future__ import annotations

from typing import Literal

from coordinator.engine import events as e
from coordinator.engine.allocation import declared_by
from coordinator.engine.draft import Draft
from coordinator.engine.entities import Allotment, LedgerEntry, Update
from services.incentive.division import computation_cost, storage_cost, transfer_cost


def charge(draft: Draft, update: Update) -> None:
    """Note what an answer cost its client: as it declared, or as it was measured. What only reports figures is free."""
    allotment = draft.state.cohorts[update.cohort_id].allotment
    if allotment is None or update.digest is None:
        return
    state, paid = draft.state, allotment.incentives
    declared = declared_by(state.clients[update.client_id])
    model = state.facts[state.runs[update.run_id].federation_id, update.base_digest].num_bytes
    sent = sum(b.num_bytes for b in state.blobs.values() if (b.origin_id, b.digest) == (update.task_id, update.digest))
    seconds = update.seconds if declared.seconds is None else declared.seconds
    moved = model + sent if declared.bytes is None else declared.bytes
    stored = model if declared.stored_bytes is None else declared.stored_bytes
    amounts = {
        "computation": computation_cost(seconds, paid),
        "communication": transfer_cost(moved, paid),
        "storage": storage_cost(stored, paid),
    }
    draft.emit(e.LedgerNoted((_entry(draft, allotment, update, "cost", amounts),)))


def pay(draft: Draft, updates: list[Update]) -> None:
    """Divide what a round pays among those whose updates it used, by their numbers of samples."""
    used = [update for update in updates if update.digest is not None]
    allotment = draft.state.cohorts[used[0].cohort_id].allotment if used else None
    if allotment is None:
        return
    whole = sum(update.num_samples for update in used)
    entries = []
    for update in used:
        part = update.num_samples / whole if whole else 1 / len(used)
        amounts = {"share": allotment.pool * part, "fixed": allotment.incentives.fixed}
        entries.append(_entry(draft, allotment, update, "reward", amounts))
    draft.emit(e.LedgerNoted(tuple(entries)))


def _entry(
    draft: Draft, allotment: Allotment, update: Update, kind: Literal["cost", "reward"], amounts: dict[str, float]
) -> LedgerEntry:
    return LedgerEntry(
        id=draft.new_id(),
        federation_id=draft.state.runs[update.run_id].federation_id,
        client_id=update.client_id,
        client_name=update.client_name,
        run_id=update.run_id,
        job_id=allotment.job_id,
        update_id=update.id,
        kind=kind,
        period=allotment.period,
        round=update.base_round + 1,
        amounts=amounts,
        at=draft.now,
    )
