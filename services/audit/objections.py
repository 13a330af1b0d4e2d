"""Why a claim cannot stand: whatever in a predicate is unfinished or contradicts itself, one sentence each.

The issuer refuses to sign while there are objections; the verifier rejects a signed certificate for the same ones.
Whether the list beside the certificate agrees with it is checked where the list is at hand (`verification.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from services.audit import merkle
from services.audit.predicate import POSSIBLE, Artefacts, ErasurePredicate
from services.audit.v1.objections import to_cohort, to_guarantee, to_names, to_replay, to_subjects, to_times


def objections(predicate: ErasurePredicate, subjects: Sequence[tuple[str, str]]) -> list[str]:
    """`subjects`: (name, digest) of every model now served."""
    return [
        *to_subjects(predicate.cohorts, subjects),
        *to_times(predicate.request),
        *_to_handling(predicate),
        *to_guarantee(predicate.guarantee, predicate.cohorts),
        *(objection for cohort in predicate.cohorts for objection in to_cohort(cohort)),
        *_to_cohort_count(predicate),
        *_to_artefacts(predicate.artefacts),
        *_to_scope(predicate),
        *to_names(predicate.request, predicate.workers, [one.aspect for one in predicate.still_shaped_by]),
        *to_replay(predicate.replayable),
        *_to_incidents(predicate),
    ]


def _to_handling(predicate: ErasurePredicate) -> Iterator[str]:
    if (handling := predicate.handling) is None:
        return
    if (handling.approved_by is None) != (handling.approved_at is None):
        yield "somebody approved at no time, or nobody at some time"
    if handling.eyes is not None and (handling.filed_by is None or handling.approved_by is None):
        yield f"{handling.eyes} are claimed, and not both are named"
    if handling.approved_by is not None and not handling.needed_approval:
        yield "it was approved, and did not need it"
    if handling.approved_at is not None and handling.approved_at > predicate.request.completed_at:
        yield "approved_at lies after completed_at"


def _to_cohort_count(predicate: ErasurePredicate) -> Iterator[str]:
    count = predicate.num_cohorts
    if count.planned != count.done:
        yield f"planned is not done: {count.done} of {count.planned} cohorts"
    if count.planned != len(predicate.cohorts):
        yield f"{count.planned} cohorts were planned but {len(predicate.cohorts)} are listed"


def _to_artefacts(artefacts: Artefacts) -> Iterator[str]:
    num_done = 0
    for kind, count in sorted(artefacts.kinds.items()):
        done = sum(count.dispositions.values())
        num_done += done
        if done != count.planned:
            yield f"planned is not done: {done} of {count.planned} of kind {kind} have a disposition"
        if not done and not count.planned:
            yield f"the kind {kind} is named, and there is none of it"
        for disposition in sorted(count.dispositions.keys() - POSSIBLE[kind]):
            yield f"a {kind} cannot be {disposition}"
    if num_done != artefacts.num_leaves:
        yield f"the list has {artefacts.num_leaves} leaves but the counts of its kinds make {num_done}"
    if (artefacts.root == f"sha256:{merkle.EMPTY.hex()}") != (artefacts.num_leaves == 0):
        yield f"the root {artefacts.root} is not that of a list of {artefacts.num_leaves} leaves"


def _to_scope(predicate: ErasurePredicate) -> Iterator[str]:
    if predicate.request.scope == "samples" and "credential" in predicate.artefacts.kinds:
        yield "the client stays, as only samples of it were erased, but a credential of it is listed"


def _to_incidents(predicate: ErasurePredicate) -> Iterator[str]:
    for incident in predicate.incidents:
        if incident.at > predicate.request.completed_at:
            yield f"the incident {incident.kind} lies after completed_at"
