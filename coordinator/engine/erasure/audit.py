"""The stage in which a mended cohort is audited: the leavers and some clients who remain score its model, and the
request's thresholds judge the scores.

A leaver scores the model before the erasure as well, which its task may read until the purge: that says what the audit
is able to see. It is a round beside the cohort's program, opened when the cohort has recovered and closed when all have
answered or its deadline has passed. Whatever is missing then fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from itertools import count
from math import fsum
from typing import Any, Final
from uuid import UUID

from coordinator.engine import events as e
from coordinator.engine.asking import new_task
from coordinator.engine.draft import Draft
from coordinator.engine.entities import GIVEN_UP, AffectedCohort, Cohort, Erasure, Member, Round, Run, Task, Update
from coordinator.engine.erasure.stages import AuditReport, LeaverReport
from coordinator.engine.messages import SettleRun
from services.audit.spec import BEFORE, SHADOW_ROUNDS, Audit, AuditPlan, Canary, read_plan
from services.audit.verdict import Check, Measured, judge, verdict_of
from services.core.figures import bounded
from services.models.spec import CUSTOM, params_of

NUM_REMAINING: Final = 3
"""This many of the clients who remain score the model."""


def review_audit(draft: Draft, erasure: Erasure, affected: AffectedCohort) -> bool:
    """Take the next step of a cohort's audit; True when there is nothing left to wait for."""
    if erasure.audit is None or affected.action != "unlearned" or affected.audit is not None:
        return True
    cohort = draft.state.cohorts[affected.cohort_id]
    if cohort.head_id is None:
        return True
    rounds = [r for r in draft.state.rounds.values() if r.cohort_id == cohort.id and r.epoch == cohort.epoch]
    opened = next((r for r in rounds if r.kind == "audit" and r.status == "open"), None)
    if draft.state.runs[affected.run_id].status in GIVEN_UP:  # nobody can be asked any more
        _conclude(draft, erasure, affected, [])
    elif opened is None:
        _open(draft, erasure, affected, cohort)
    elif not _is_own(draft, erasure, opened):
        return False  # another request's comes first
    elif opened.num_open == 0 or opened.waiting_for_quorum:
        _judge(draft, erasure, affected, opened)
    return draft.state.affected_cohorts[affected.key].audit is not None


def failure(affected: AffectedCohort) -> str:
    """What the operator is told of an audit that did not pass."""
    assert affected.audit is not None
    checks = [check for check in affected.audit.checks if not check.passed]
    why = "; ".join(f"{' of '.join(filter(None, (check.name, check.client)))}: {check.why}" for check in checks)
    says = "says nothing" if affected.audit.verdict == "says-nothing" else "failed"
    retry = "retry the request to train again without the client"
    return f"the audit of cohort {affected.cohort_name} {says} ({why}); {retry}"


def _open(draft: Draft, erasure: Erasure, affected: AffectedCohort, cohort: Cohort) -> None:
    plan, run = read_plan(erasure.audit or {})[0], draft.state.runs[cohort.run_id]
    members = sorted((m for m in draft.state.members.values() if m.cohort_id == cohort.id), key=lambda m: m.name)
    leavers = _leavers(draft, erasure, cohort.id)
    remaining = [m for m in members if m.active][:NUM_REMAINING]
    if run.status == "completed":
        draft.emit(e.RunReopened(run.id, "auditing what was erased"))
    round = Round(
        id=draft.new_id(),
        run_id=run.id,
        cohort_id=cohort.id,
        epoch=cohort.epoch,
        number=_free_number(draft, cohort),
        kind="audit",
        status="open",
        model_digest=cohort.head_digest or "",
        quorum=0,
        num_selected=len(leavers) + len(remaining),
        opened_at=draft.now,
        due_at=draft.now + timedelta(seconds=plan.deadline_s),
        num_open=len(leavers) + len(remaining),
        close_at_deadline=True,
    )
    work = _leaver_work(draft, plan, affected, cohort, num_members=len(leavers) + cohort.num_members)
    asked = [(member, _with_canary(draft, work, member)) for member in leavers]
    asked += [(member, plan.work("remaining")) for member in remaining]
    tasks = tuple(_task(draft, round, member, work, position) for position, (member, work) in enumerate(asked))
    draft.emit(e.RoundOpened(round, tasks))


def _free_number(draft: Draft, cohort: Cohort) -> int:
    """That of the model, unless another audit has had it: each round of an epoch is there once."""
    tasks = [task for task in draft.state.tasks.values() if task.cohort_id == cohort.id and task.kind == "audit"]
    taken = {task.round for task in tasks if task.epoch == cohort.epoch}
    return next(number for number in count(cohort.round) if number not in taken)


def _leavers(draft: Draft, erasure: Erasure, cohort_id: UUID) -> list[Member]:
    """The request's leavers who were in this cohort; another cohort may have held others."""
    forgotten = {s.client_id for s in draft.state.subjects.values() if s.erasure_id == erasure.id}
    own = [m for m in draft.state.members.values() if m.cohort_id == cohort_id and m.client_id in forgotten]
    return sorted(own, key=lambda m: m.name)


def _is_own(draft: Draft, erasure: Erasure, round: Round) -> bool:
    """Whether the leavers whom it asks are this request's."""
    tasks = [task for task in draft.state.tasks.values() if task.round_id == round.id]
    asked = {task.client_id for task in tasks if (task.work or {}).get("role") == "leaver"}
    return asked <= {member.client_id for member in _leavers(draft, erasure, round.cohort_id)}


def _leaver_work(draft: Draft, plan: AuditPlan, affected: AffectedCohort, cohort: Cohort, num_members: int) -> Audit:
    """The task of a leaver. Shadow models go on from the mended model as the run would: by its training, with one
    client's share of each round."""
    made = {c.digest for c in draft.state.checkpoints.values() if c.cohort_id == cohort.id and c.stored}
    known: dict[str, Any] = {"before": affected.head_before if affected.head_before in made else None}
    if plan.num_shadows:
        known["shadow_start"] = cohort.head_digest
        known["shadow_training"] = draft.state.runs[affected.run_id].spec.local
        known["shadow_rounds"], known["shadow_share"] = SHADOW_ROUNDS, 1 / num_members
    return plan.work("leaver").model_copy(update=known)


def _with_canary(draft: Draft, work: Audit, member: Member) -> Audit:
    """The task looks for the canary that the request names, else for the one that was registered for the client."""
    registered = draft.state.clients[member.client_id].canary
    if work.canary is not None or registered is None:
        return work
    return work.model_copy(update={"canary": Canary.model_validate(registered)})


def _task(draft: Draft, round: Round, member: Member, work: Audit, position: int) -> Task:
    task = new_task(draft, round, member, position, "ready")
    base_round = draft.state.cohorts[round.cohort_id].round
    return replace(task, base_round=base_round, work=work.model_dump(mode="json"))


def _judge(draft: Draft, erasure: Erasure, affected: AffectedCohort, round: Round) -> None:
    answers = sorted((u for u in draft.state.updates.values() if u.round_id == round.id), key=lambda u: u.client_name)
    draft.emit(e.RoundClosed(round.id, tuple(u.id for u in answers), draft.now))
    draft.revoke([t for t in draft.open_tasks(round.cohort_id) if t.round_id == round.id])
    _conclude(draft, erasure, affected, answers)
    cohort = draft.state.cohorts[affected.cohort_id]
    draft.post(cohort, SettleRun(cohort.run_id))


def _conclude(draft: Draft, erasure: Erasure, affected: AffectedCohort, answers: list[Update]) -> None:
    plan, withdrawn = read_plan(erasure.audit or {})
    leavers = {m.client_id: m.name for m in _leavers(draft, erasure, affected.cohort_id)}
    found = dict.fromkeys(leavers.values(), Measured())
    found |= {leavers[u.client_id]: _measured(u.metrics) for u in answers if u.client_id in leavers}
    remaining = _mean([u for u in answers if u.client_id not in leavers])
    chance = _chance(plan, draft.state.runs[affected.run_id])
    verdict = judge(found, remaining, plan.references, plan.thresholds, chance=chance)
    why = "this threshold was withdrawn, as nothing computes its figure"
    never = [Check(name.removeprefix("max_"), "failed", None, None, None, why) for name in withdrawn]
    verdict = verdict_of([*verdict.checks, *never])
    reports = {name: LeaverReport(verdict.of(name), own.after, own.before) for name, own in sorted(found.items())}
    report = AuditReport(verdict.outcome, remaining, reports, verdict.checks)
    draft.emit(e.AffectedCohortAudited(affected.erasure_id, affected.cohort_id, report))


def _measured(metrics: Mapping[str, float]) -> Measured:
    """The figures in a leaver's answer. What is not finite is left out, so that a verdict on it fails."""
    finite = {name: value for name, value in sorted(bounded(metrics).items()) if name != "seconds"}
    before = {name.removeprefix(BEFORE): value for name, value in finite.items() if name.startswith(BEFORE)}
    return Measured({name: value for name, value in finite.items() if not name.startswith(BEFORE)}, before)


def _chance(plan: AuditPlan, run: Run) -> float:
    """The chance of guessing a class; none is granted when nobody said how many classes there are."""
    if plan.num_classes is not None:
        return 1 / plan.num_classes
    model = run.spec.model
    return 0.0 if model.name == CUSTOM else 1 / params_of(model).num_classes


def _mean(answers: list[Update]) -> dict[str, float]:
    """The mean of the answers by samples, of the figures that all of them have."""
    if not answers:
        return {}
    reported = [bounded(u.metrics) for u in answers]
    names = set.intersection(*map(set, reported)) - {"seconds"}
    found: dict[str, float] = {}
    for name in sorted(names):
        values = [figures[name] for figures in reported]
        if name.endswith("_samples"):
            found[name] = fsum(values)
        else:
            weights = [float(u.num_samples) for u in answers]
            found[name] = fsum(v * w for v, w in zip(values, weights, strict=True)) / fsum(weights)
    return found
