"""From what somebody asks to be forgotten to the message that files it: the same for the API, a preview and a
simulation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import UUID

from coordinator.engine.entities import Erasure, Subject
from coordinator.engine.erasure.stages import RecoveryWanted
from coordinator.engine.messages import FileErasure
from coordinator.tombstones.port import ErasedSamples, FencedCohort, FiledAs, Tombstone
from services.methods.catalogue import AUTO, PLAIN
from services.wire.v1.erasure import LEGAL_DAYS, ErasureCreate, ErasurePreviewRequest


def filing_of(
    wanted: ErasurePreviewRequest | ErasureCreate,
    *,
    erasure_id: UUID,
    federation_id: UUID,
    requested_by: str,
    now: datetime,
    salt: bytes,
) -> FileErasure:
    """`salt`: random, and secret until the certificate is opened."""
    return FileErasure(
        erasure_id=erasure_id,
        federation_id=federation_id,
        subjects=tuple(wanted.subjects),
        requested_by=requested_by,
        legal_deadline=now + timedelta(days=LEGAL_DAYS),
        salt=salt.hex(),
        scope=wanted.scope,
        samples={name: sorted(samples) for name, samples in wanted.samples.items()},
        method=wanted.method,
        params=wanted.params,
        guarantee=wanted.guarantee,
        recovery_rounds=wanted.recovery_rounds,
        recovery=_recovery(wanted),
        fallback=wanted.fallback,
        reward=wanted.reward,
        audit=wanted.audit.model_dump(mode="json") if wanted.audit is not None else None,
    )


def filed_as(erasure: Erasure) -> FiledAs:
    """What its tombstone says of a request, so that it can be filed again."""
    recovery = erasure.recovery
    return FiledAs(
        regulation=erasure.regulation,
        ground=erasure.ground,
        legal_deadline=erasure.legal_deadline,
        method=erasure.method,
        params=dict(erasure.params),
        guarantee=erasure.guarantee,
        recovery_rounds=erasure.recovery_rounds,
        recovery_method=recovery.method if recovery is not None else None,
        recovery_params=dict(recovery.params) if recovery is not None else {},
        reward=erasure.reward,
        num_callbacks=len(erasure.callbacks),
    )


def tombstone_of(
    erasure: Erasure, subjects: Sequence[Subject], cohorts: Iterable[tuple[UUID, UUID, int]], at: datetime
) -> Tombstone:
    """What the log says of a request from its fence on. `cohorts`: (run, cohort, epoch from the fence on)."""
    own = sorted(subjects, key=lambda subject: subject.name)
    return Tombstone(
        request_id=erasure.id,
        federation_id=erasure.federation_id,
        scope=erasure.scope,
        client_ids=tuple(subject.client_id for subject in own),
        cohorts=tuple(FencedCohort(run_id=run, cohort_id=cohort, epoch=epoch) for run, cohort, epoch in cohorts),
        samples=tuple(
            ErasedSamples(client_id=subject.client_id, samples=tuple(erasure.samples[subject.name]))
            for subject in own
            if erasure.samples.get(subject.name)
        ),
        at=at,
        requested_by=erasure.requested_by,
        filed_as=filed_as(erasure),
    )


def filing_again(
    entry: Tombstone,
    *,
    subjects: tuple[str, ...],
    samples: dict[str, list[int]],
    unknown: str,
    now: datetime,
    salt: bytes,
) -> FileErasure:
    """The message that files a request which a restored database does not know, as far as its tombstone says what it
    asked for. In place of an approximate method it is carried out exactly: what the method would mend may have become
    unreadable with the first purge."""
    said = entry.filed_as
    again = FileErasure(
        erasure_id=entry.request_id,
        federation_id=entry.federation_id,
        subjects=subjects,
        requested_by=entry.requested_by or unknown,
        legal_deadline=max(now, entry.at + timedelta(days=LEGAL_DAYS) if said is None else said.legal_deadline),
        salt=salt.hex(),
        scope=entry.scope,
        samples=samples,
        is_tombstoned=True,
    )
    if said is None:
        return again
    is_exact = said.guarantee == "exact"
    recovery = None if said.recovery_method is None else RecoveryWanted(said.recovery_method, said.recovery_params)
    return replace(
        again,
        regulation=said.regulation,
        ground=said.ground,
        method=said.method if is_exact else AUTO,
        params=said.params if is_exact else {},
        recovery_rounds=said.recovery_rounds,
        recovery=recovery,
        reward=said.reward,
    )


def _recovery(wanted: ErasurePreviewRequest | ErasureCreate) -> RecoveryWanted | None:
    chosen = wanted.recovery
    if isinstance(chosen, str) or (chosen.method == PLAIN and not chosen.params):
        return None
    return RecoveryWanted(chosen.method, chosen.params)
