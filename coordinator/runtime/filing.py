"""From what somebody asks to be forgotten to the message that files it: the same for the API, a preview and a
simulation."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

from coordinator.engine.messages import FileErasure
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
        fallback=wanted.fallback,
        audit=wanted.audit.model_dump(mode="json") if wanted.audit is not None else None,
    )
