"""Which rows name bytes by their digest, and how what kernels made is given up when none does.

Every column that can hold the digest of a blob is listed here, once: with the condition under which its row still needs
the bytes, or with the reason why it never does. A test compares the lists with the tables, so that a new column cannot
be forgotten. What a client sent for a task needs no such look: its task alone names it.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final, cast
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.store import blobs
from coordinator.store import tables as t
from coordinator.store.tables.taint import tainted


@dataclass(frozen=True, slots=True)
class Reference:
    """A column whose value names a blob, or whose JSON may mention some; `is_live`: while the row needs the bytes."""

    column: sa.Column[Any]
    is_live: sa.ColumnElement[bool]

    @property
    def found(self) -> sa.Select[Any]:
        """What the owner's live rows say: those of the digests that they name, or JSON that mentions any."""
        where = self.is_live & _is_the_owners(self.column.table.c)
        if isinstance(self.column.type, sa.String):
            return sa.select(self.column).where(self.column.in_(_digests), where)
        text = sa.cast(self.column, sa.Text)
        return sa.select(text.label("mentions")).where(text.contains("sha256:"), where)


_owner: sa.BindParameter[UUID] = sa.bindparam("owner", type_=t.runs.c.federation_id.type)
_digests: sa.BindParameter[Any] = sa.bindparam("digests", expanding=True)


def _is_the_owners(columns: Any) -> sa.ColumnElement[bool]:
    """Whether a row is the owner's. It is found by its own index first: hence the subquery and not a join."""
    if "federation_id" in columns:
        return cast(sa.ColumnElement[bool], columns.federation_id == _owner)
    run_id = columns.run_id if "run_id" in columns else t.updates.c.run_id
    return sa.exists().where(t.runs.c.id == run_id, t.runs.c.federation_id == _owner)


_is_at_work = t.cohorts.c.phase.not_in(("finished", "retired"))
_is_unfinished = t.lines.c.done_at.is_(None)
_is_open_kernel = sa.and_(t.IS_OPEN_JOB, t.jobs.c.kind == "kernel")

NAMED_BY: Final = (  # those that an index answers first
    Reference(t.updates.c.digest, t.updates.c.stored),
    Reference(t.checkpoints.c.digest, t.checkpoints.c.stored),
    Reference(t.kept_updates.c.source, t.kept_updates.c.status == "sealing"),
    Reference(t.kept_updates.c.digest, t.kept_updates.c.status != "dropped"),
    Reference(t.contributions.c.digest, (t.contributions.c.update_id == t.updates.c.id) & t.updates.c.stored),
    Reference(t.rounds.c.model_digest, sa.and_(t.IS_OPEN_ROUND, sa.true())),
    # A task that stands by takes the model of its round when it is promoted.
    Reference(t.tasks.c.model_digest, sa.and_(t.IS_CLAIMABLE_OR_LEASED, sa.true())),
    Reference(t.tasks.c.work, sa.and_(t.IS_CLAIMABLE_OR_LEASED, t.tasks.c.work.is_not(None))),
    Reference(t.jobs.c.inputs, _is_open_kernel),
    Reference(t.jobs.c.params, _is_open_kernel),
    Reference(t.cohorts.c.head_digest, t.cohorts.c.phase != "retired"),
    Reference(t.cohorts.c.residuals, t.cohorts.c.phase != "retired"),
    Reference(t.cohorts.c.selection, t.cohorts.c.phase != "retired"),
    Reference(t.cohorts.c.program_state, _is_at_work),
    Reference(t.cohorts.c.pending, _is_at_work),
    Reference(t.cohorts.c.recovery, _is_at_work),
    Reference(t.cohorts.c.unlearning, _is_at_work),
    Reference(t.lines.c.rollback_digest, _is_unfinished),
    Reference(t.lines.c.sources, _is_unfinished),
    Reference(t.lines.c.fallback, _is_unfinished),
    # Of ended runs, too: an erasure may train them again.
    Reference(t.runs.c.spec, sa.true()),
)
NAMES_NO_BLOB: Final[dict[sa.Column[Any], str]] = {
    t.blobs.c.digest: "the blob itself",
    t.blobs.c.layout_digest: "of a layout",
    t.blobs.c.updatable_digest: "of a layout",
    t.evidence_state.c.digest: "of a line of the tombstone log",
    t.signing_keys.c.key_id: "of a key",
    t.clients.c.exclusions: "of a list of samples",
    t.clients.c.exclusions_acked: "of a list of samples",
    t.inbox.c.fingerprint: "of a request",
    t.acts.c.parts: "commitments to words",
    t.acts.c.gap: "of entries of the log of acts",
    t.acts.c.digest: "of an entry of the log of acts",
    t.act_chains.c.digest: "of an entry of the log of acts",
    t.act_chains.c.before: "of an entry of the log of acts",
    t.jobs.c.output: "a record of the past",
    t.evidence_state.c.digest: "of the log of tombstones",
    t.signing_keys.c.key_id: "of a public key",
    t.tasks.c.result_digest: "the update's own row names it",
    t.updates.c.base_digest: "a record of the past; the checkpoint names it while it is stored",
    t.kept_updates.c.base_digest: "a record of the past; the checkpoint names it while it is stored",
    t.lines.c.head_before: "a record of the past; what it names is to be purged",
    t.artefacts.c.digest: "a record of the past; what it names is purged",
    tainted.c.digest: "nobody may have what it names",
    t.clients.c.devices: "words",
    t.clients.c.canary: "a pattern to look for",
    t.clients.c.resources: "figures",
    t.cohorts.c.allotment: "figures",
    t.federations.c.incentives: "figures",
    t.periods.c.incentives: "figures",
    t.periods.c.jobs: "figures",
    t.periods.c.candidates: "figures",
    t.periods.c.division: "ids and figures",
    t.ledger.c.amounts: "figures",
    t.tasks.c.local: "parameters of training",
    t.updates.c.metrics: "figures",
    t.checkpoints.c.metrics: "figures",
    t.checkpoints.c.forgets: "ids of clients",
    t.erasures.c.samples: "numbers of rows",
    t.erasures.c.params: "parameters of a method",
    t.erasures.c.recovery: "a method and its parameters",
    t.erasures.c.audit: "thresholds",
    t.erasures.c.callbacks: "addresses",
    t.erasures.c.filed_by: "a person",
    t.erasures.c.ruling: "a person and words",
    t.erasures.c.extension: "a person and words",
    t.exclusions.c.samples: "numbers of rows",
    t.exclusions.c.unknown: "numbers of rows",
    t.lines.c.audit: "figures",
    t.deliveries.c.payload: "a record of the past",
    t.erasure_log.c.data: "a record of the past",
    t.journal.c.data: "a record of the past",
}
"""Why the bytes are not needed for the sake of these."""

_is_text = {reference: isinstance(reference.column.type, sa.JSON) for reference in NAMED_BY}
_NAMED = sa.union_all(*(reference.found for reference, is_text in _is_text.items() if not is_text))
_MENTIONS = sa.union_all(*(reference.found for reference, is_text in _is_text.items() if is_text))
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


async def named(connection: AsyncConnection, federation_id: UUID, digests: Collection[str]) -> set[str]:
    """The federation's blobs among these that some row needs."""
    wanted = set(digests)
    if not wanted:
        return set()
    rows = await connection.execute(_NAMED, {"owner": federation_id, "digests": sorted(wanted)})
    found = set(rows.scalars())
    if wanted - found:
        texts = (await connection.execute(_MENTIONS, {"owner": federation_id})).scalars()
        found |= {digest for text in texts for digest in _DIGEST.findall(text)}
    return wanted & found


_MADE = sa.select(t.blobs.c.id, t.blobs.c.digest).where(
    t.blobs.c.federation_id == _owner,
    t.blobs.c.digest.in_(_digests),
    t.blobs.c.origin == "job",
    t.blobs.c.status == "stored",
)


async def release(connection: AsyncConnection, federation_id: UUID, digests: Collection[str]) -> None:
    """Give up what kernels made and no row needs; the caller has the bytes deleted after the commit."""
    if not digests:
        return
    made = (await connection.execute(_MADE, {"owner": federation_id, "digests": sorted(set(digests))})).all()
    await blobs.hold(connection, [row.id for row in made])
    needed = await named(connection, federation_id, {row.digest for row in made})
    await blobs.drop(connection, [row.id for row in made if row.digest not in needed])
