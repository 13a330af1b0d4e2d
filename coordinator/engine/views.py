"""What a program is shown of its cohort: references and figures, never tensors."""

from __future__ import annotations

from coordinator.engine import families
from coordinator.engine.draft import Draft
from coordinator.engine.entities import Cohort, State, Update
from services.core.figures import bounded
from services.methods.catalogue import WALK_THEIR_HISTORY
from services.program.contract import CohortView, PastRound, Profiled, UpdateRef


def view_of(draft: Draft, cohort: Cohort) -> CohortView:
    run = draft.state.runs[cohort.run_id]
    return CohortView(
        name=cohort.name,
        num_members=cohort.num_serving,
        num_members_of_run=cohort.num_clients_of_run,
        spec=run.spec,
        head=cohort.head_digest,
        round=cohort.round,
        sources=cohort.sources,
        extra_rounds=cohort.extra_rounds,
        profiled=_profiled(draft, cohort),
        residuals=cohort.residuals,
        erasure=cohort.unlearning.facts if cohort.unlearning is not None else None,
        compared_with=cohort.recovering.compared_with if cohort.recovering is not None else None,
        is_part=cohort.parent_id is not None,
    )


def _profiled(draft: Draft, cohort: Cohort) -> Profiled | None:
    """What the clusters were formed from: the kept updates of those who were not erased since."""
    if cohort.program != families.NEWCOMER:
        return None
    formed_by = families.profile_of(draft.state, cohort.run_id)
    if formed_by is None:
        return None
    known = [u for u in draft.state.updates.values() if u.cohort_id == formed_by.id and u.stored]
    kept = [u for u in known if draft.state.clients[u.client_id].status != "erased" and u.status == "consumed"]
    figures = (formed_by.program_state or {})["figures"]
    return Profiled(tuple(map(reference_to, sorted(kept, key=lambda u: u.client_name))), figures)


def history_of(draft: Draft, cohort: Cohort) -> tuple[PastRound, ...]:
    """The rounds that a cohort made after its head before it was fenced, as long as all that the others sent is kept.

    Where a round was made several times, what followed the last making counts. What a method published to forget
    somebody is no round of the cohort's: its updates were trained on other models. What a client sent that has had to
    leave samples out may have been trained on them: from its first round on, clients train again.
    """
    if cohort.program not in WALK_THEIR_HISTORY or cohort.head_id is None:
        return ()
    made = sorted((c for c in draft.state.checkpoints.values() if c.cohort_id == cohort.id), key=lambda c: c.epoch)
    after = {c.base_id: c for c in made if c.epoch < cohort.epoch and c.kind == "aggregate"}
    found: list[PastRound] = []
    checkpoint = after.get(cohort.head_id)
    while checkpoint is not None:
        sent = [draft.state.updates[c.update_id] for c in draft.state.contributions.values()
                if c.checkpoint_id == checkpoint.id]  # fmt: skip
        left = sorted(
            (u for u in sent if draft.state.clients[u.client_id].status != "erased"), key=lambda u: u.client_name
        )
        if not left or not all(u.stored and not _has_forgotten_samples(draft.state, u) for u in left):
            break
        found.append(PastRound(checkpoint.digest, tuple(map(reference_to, left))))
        checkpoint = after.get(checkpoint.id)
    return tuple(found)


def _has_forgotten_samples(state: State, update: Update) -> bool:
    """Whether its client was told to forget samples after it sent this, which may be made of them."""
    requests = [state.erasures[s.erasure_id] for s in state.subjects.values() if s.client_id == update.client_id]
    fences = [one.fenced_at for one in requests if one.scope == "samples" and one.fenced_at is not None]
    return any(update.received_at <= fenced_at for fenced_at in fences)


def reference_to(update: Update) -> UpdateRef:
    return UpdateRef(
        update_id=update.id,
        client=update.client_name,
        digest=update.digest,
        num_samples=update.num_samples,
        base_round=update.base_round,
        metrics=bounded(update.metrics),
        seconds=update.seconds,
    )
