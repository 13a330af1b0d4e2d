"""The columns that a purge leaves as they are, each with its reason; columns.py has all others that hold words."""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa

from coordinator.store import tables as t

_NAME: Final = (
    "a name: draws and the order of aggregation are named by it, and nobody is enrolled under it again; "
    "docs/erasure.md says why it stays"
)
_WORD: Final = "one of a few words of ours"
_DIGEST: Final = "of bytes, not the bytes"
_CHOSEN: Final = "chosen by an operator, who speaks of no client's data there"
_REQUEST: Final = "the request itself, which is kept as evidence"
_SECRET: Final = "drawn at random, or a hash of that"
_by_reason: Final[dict[str, tuple[sa.Column[Any], ...]]] = {
    _NAME: (
        t.clients.c.name,
        t.members.c.name,
        t.tasks.c.client_name,
        t.updates.c.client_name,
        t.kept_updates.c.client_name,
        t.subjects.c.name,
        t.exclusions.c.client_name,
        t.ledger.c.client_name,
    ),
    _CHOSEN: (
        t.federations.c.name,
        t.credentials.c.label,
        t.erasures.c.filed_by,
        t.runs.c.name,
        t.runs.c.spec,
        t.cohorts.c.name,
        t.cohorts.c.group,
        t.lines.c.cohort_name,
        t.tasks.c.local,
        t.federations.c.incentives,
        t.periods.c.incentives,
        t.periods.c.jobs,
        t.cohorts.c.allotment,
        t.incidents.c.explanation,
        t.incidents.c.reported_by,
    ),
    _WORD: (
        t.clients.c.status,
        t.credentials.c.role,
        t.federations.c.allocation,
        t.periods.c.strategy,
        t.ledger.c.kind,
        t.runs.c.status,
        t.runs.c.hold,
        t.cohorts.c.phase,
        t.cohorts.c.program,
        t.cohorts.c.kind,
        t.rounds.c.kind,
        t.rounds.c.status,
        t.tasks.c.kind,
        t.tasks.c.status,
        t.updates.c.kind,
        t.updates.c.status,
        t.jobs.c.kind,
        t.jobs.c.kernel,
        t.jobs.c.status,
        t.checkpoints.c.kind,
        t.kept_updates.c.dtype,
        t.kept_updates.c.compression,
        t.kept_updates.c.status,
        t.erasures.c.status,
        t.erasures.c.scope,
        t.erasures.c.method,
        t.erasures.c.guarantee,
        t.erasures.c.fallback,
        t.erasures.c.chosen,
        t.erasures.c.ground,
        t.federations.c.four_eyes,
        t.lines.c.action,
        t.artefacts.c.kind,
        t.artefacts.c.disposition,
        t.artefacts.c.reason,
        t.blobs.c.origin,
        t.blobs.c.status,
        t.incidents.c.kind,
        t.deliveries.c.type,
        t.deliveries.c.status,
        t.erasure_log.c.type,
        t.journal.c.type,
        t.inbox.c.route,
        t.acts.c.act,
        t.acts.c.role,
        t.acts.c.about_kind,
    ),
    _DIGEST: (
        t.tainted.c.digest,
        t.cohorts.c.residuals,
        t.cohorts.c.head_digest,
        t.rounds.c.model_digest,
        t.tasks.c.model_digest,
        t.tasks.c.result_digest,
        t.updates.c.base_digest,
        t.updates.c.digest,
        t.jobs.c.inputs,
        t.jobs.c.output,
        t.checkpoints.c.digest,
        t.contributions.c.digest,
        t.kept_updates.c.base_digest,
        t.kept_updates.c.source,
        t.kept_updates.c.digest,
        t.lines.c.head_before,
        t.lines.c.rollback_digest,
        t.lines.c.fallback,
        t.artefacts.c.digest,
        t.blobs.c.digest,
        t.blobs.c.layout_digest,
        t.blobs.c.updatable_digest,
        t.inbox.c.fingerprint,
        t.evidence_state.c.digest,
        t.acts.c.gap,
        t.acts.c.digest,
        t.act_chains.c.digest,
        t.act_chains.c.before,
        t.act_chains.c.head,
    ),
    _SECRET: (
        t.credentials.c.secret_hash,
        t.tasks.c.lease_token,
        t.jobs.c.lease_token,
        t.erasures.c.salt,
        t.browser_sessions.c.secret_hash,
        t.hand_overs.c.secret_hash,
    ),
    "a member of staff, as the provider that they sign in with names them": (t.credentials.c.subject,),
    _REQUEST: (
        t.erasures.c.regulation,
        t.erasures.c.requested_by,
        t.erasures.c.params,
        t.erasures.c.recovery,
        t.erasures.c.callbacks,
        t.deliveries.c.url,
        t.certificates.c.envelope,
    ),
    "commitments, and what is sealed under keys of whom it is about: those are destroyed": (t.acts.c.parts,),
    "ids of clients": (t.checkpoints.c.forgets, t.inbox.c.principal),
    "names of keys, or keys that anybody may know": (
        t.blobs.c.key_name,
        t.blobs.c.client_key_name,
        t.signing_keys.c.key_id,
        t.signing_keys.c.public_key,
    ),
    "digests and weights of clean models": (t.cohorts.c.pending, t.lines.c.sources),
    "parameters of a method": (t.cohorts.c.recovery,),
    "names and digests that a fence of their cohort takes out": (t.cohorts.c.selection,),
    "said by the receiver of a callback": (t.deliveries.c.error,),
}
STAYS: Final[dict[sa.Column[Any], str]] = {
    column: reason for reason, columns in _by_reason.items() for column in columns
}
"""Why nothing is taken out of these."""
