"""What a certificate would claim of the cohorts in a world in memory, and whether that could be signed."""

from __future__ import annotations

from datetime import datetime

from coordinator.engine.entities import Erasure, State
from coordinator.runtime.certificate_issuer import outcome, served
from coordinator.store.inventory import ErasureRecord
from services.audit import predicate as p
from services.audit.artefact_list import ListTally
from services.audit.objections import objections
from services.core.digests import of_json

SALT = bytes(32)


def objections_to(state: State, erasure: Erasure, now: datetime) -> list[str]:
    """Why the certificate of the request would be refused. Artefacts are not looked at: the world's purge does that."""
    assert erasure.fenced_at is not None
    lines = [line for line in state.affected_cohorts.values() if line.erasure_id == erasure.id]
    runs = {line.run_id: state.runs[line.run_id] for line in lines}
    cohorts = {c.id: c for c in state.cohorts.values() if c.run_id in runs}
    subjects = [s for s in state.subjects.values() if s.erasure_id == erasure.id]
    found = ErasureRecord(erasure, subjects, lines, cohorts, runs)
    is_mended = any(line.action == "unlearned" for line in lines)
    predicate = p.ErasurePredicate(
        federation=erasure.federation_id,
        request=p.Request(
            id=erasure.id,
            subjects=tuple(p.commit(s.name, erasure.id, erasure.federation_id, SALT) for s in subjects),
            scope=erasure.scope,
            regulation=erasure.regulation,
            submitted_at=erasure.created_at,
            fenced_at=erasure.fenced_at,
            first_clean_at=erasure.first_clean_at or erasure.fenced_at,
            completed_at=now,
        ),
        method=p.Method(name=erasure.chosen or ""),
        guarantee=p.Guarantee.plain("approximate" if is_mended else "exact"),
        cohorts=tuple(outcome(found, line) for line in lines),
        num_cohorts=p.Count(planned=len(lines), done=sum(line.done_at is not None for line in lines)),
        artefacts=ListTally().artefacts(),
        still_shaped_by=(),
        workers=p.Workers(),
        replayable=p.Replayable.of(0, 0),
        limits=p.STANDING_LIMITS,
        issuer=p.Issuer(coordinator_version="0", key_id=of_json("a key")),
    )
    return objections(predicate, [(name, digest) for name, _, digest in served(found)])
