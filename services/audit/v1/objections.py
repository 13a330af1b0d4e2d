"""Why a claim of the first version cannot stand: whatever is unfinished or contradicts itself, one sentence each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from services.audit.v1.predicate import (
    MEANINGS,
    Artefact,
    CohortOutcome,
    ErasurePredicate,
    Guarantee,
    Influence,
    Replayable,
    Request,
    Workers,
    extent_of,
)


def objections(predicate: ErasurePredicate, subjects: Sequence[tuple[str, str]]) -> list[str]:
    """`subjects`: (name, digest) of every model now served."""
    return [
        *to_subjects(predicate.cohorts, subjects),
        *to_times(predicate.request),
        *to_guarantee(predicate.guarantee, predicate.cohorts),
        *(objection for cohort in predicate.cohorts for objection in to_cohort(cohort)),
        *(objection for artefact in predicate.artefacts for objection in _to_artefact(artefact)),
        *_to_counts(predicate),
        *to_names(predicate.request, predicate.workers, predicate.still_shaped_by),
        *to_replay(predicate.replayable),
    ]


def to_subjects(cohorts: Sequence[CohortOutcome], subjects: Sequence[tuple[str, str]]) -> Iterator[str]:
    if not subjects and any(cohort.outcome != "retired" for cohort in cohorts):
        yield "there are no subjects: it names no model that is now served"
    for name in _repeated([name for name, _ in subjects]):
        yield f"the subject {name!a} is named twice"
    served = {digest for _, digest in subjects}
    for cohort in cohorts:
        if cohort.head is not None and cohort.head not in served:
            yield f"the head of cohort {cohort.name!a}, {cohort.head}, is not among the subjects"


def to_times(request: Request) -> Iterator[str]:
    steps = ("submitted_at", "fenced_at", "first_clean_at", "completed_at")
    for earlier, later in pairwise(steps):
        if getattr(request, earlier) > getattr(request, later):
            yield f"the times are out of order: {earlier} is after {later}"
    if request.legal_deadline is not None and request.legal_deadline < request.submitted_at:
        yield "the times are out of order: the legal deadline lies before submitted_at"


def to_guarantee(guarantee: Guarantee, cohorts: Sequence[CohortOutcome]) -> Iterator[str]:
    if guarantee.meaning != MEANINGS[guarantee.kind]:
        yield f"the guarantee is not said plainly: {guarantee.kind!r} must carry the sentence defined for it"
    if guarantee.kind == "exact":
        for cohort in cohorts:
            if cohort.outcome == "unlearned":
                yield f"the guarantee is exact but cohort {cohort.name!a} was changed by an approximate method"


def to_cohort(cohort: CohortOutcome) -> Iterator[str]:
    name = f"cohort {cohort.name!a}"
    if cohort.epoch_after <= cohort.epoch_before:
        yield f"{name} was not fenced: its epoch went from {cohort.epoch_before} to {cohort.epoch_after}"
    if (cohort.head is None) != (cohort.outcome == "retired"):
        yield f"{name} is {cohort.outcome} and " + ("serves no model" if cohort.head is None else "still serves one")
    if cohort.outcome == "rolled-back" and cohort.rollback_point is None:
        yield f"{name} is rolled-back but names no rollback point"
    if (cohort.outcome == "re-initialised") != bool(cohort.parents):
        yield f"{name} is {cohort.outcome} and names {len(cohort.parents)} parents"
    if cohort.parents and not any(parent.weight > 0 for parent in cohort.parents):
        yield f"the weights of the parents of {name} are all zero"


def _to_artefact(artefact: Artefact) -> Iterator[str]:
    if artefact.disposition is None:
        yield f"{artefact.kind} {artefact.digest} has no disposition"
    elif artefact.disposition in ("retained-by-policy", "unreachable") and not artefact.reason.strip():
        yield f"{artefact.kind} {artefact.digest} is {artefact.disposition} without a reason"


def _to_counts(predicate: ErasurePredicate) -> Iterator[str]:
    listed = Counter[str](artefact.kind for artefact in predicate.artefacts)
    listed["cohort"] = len(predicate.cohorts)
    counts = dict[str, tuple[int, int]]((kind, (count.planned, count.done)) for kind, count in predicate.counts.items())
    for kind in sorted(listed.keys() | counts.keys()):
        planned, done = counts.get(kind, (0, 0))
        if planned != done:
            yield f"planned is not done: {done} of {planned} of kind {kind}"
        if planned != listed[kind]:
            yield f"{planned} of kind {kind} were planned but {listed[kind]} are listed"


def to_names(request: Request, workers: Workers, still_shaped_by: Sequence[Influence]) -> Iterator[str]:
    for commitment in _repeated(request.subjects):
        yield f"the erased client {commitment} is named twice"
    for commitment in _repeated(workers.confirmed + workers.unconfirmed):
        yield f"the worker {commitment} is named twice"
    for aspect in _repeated([influence.aspect for influence in still_shaped_by]):
        yield f"still_shaped_by names {aspect} twice"


def to_replay(replayable: Replayable) -> Iterator[str]:
    if replayable.num_replayable > replayable.num_steps:
        yield f"{replayable.num_replayable} of {replayable.num_steps} steps are said to be replayable"
    elif replayable.extent != extent_of(replayable.num_replayable, replayable.num_steps):
        yield (
            f"replayable is said to be {replayable.extent}, "
            f"with {replayable.num_replayable} of {replayable.num_steps} steps"
        )


def _repeated(names: Sequence[str]) -> list[str]:
    return [name for name, times in Counter(names).items() if times > 1]
