"""The audit of a mended line: the leavers and some who remain score the model; the request's thresholds judge.

A leaver scores the model before the erasure as well, which its task may read until the purge: that says what the audit
is able to see. It is a round beside the cohort's program, opened when the line has recovered and closed when all have
answered or its deadline has passed. Whatever is missing then fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from math import fsum
from typing import Any, Final
from uuid import UUID

from coordinator.engine import events as e
from coordinator.engine.asking import new_task
from coordinator.engine.draft import Draft
from coordinator.engine.entities import GIVEN_UP, Cohort, Erasure, Line, Member, Round, Run, Task, Update
from coordinator.engine.messages import SettleRun
from services.audit.spec import BEFORE, SHADOW_ROUNDS, Audit, AuditPlan, Canary, read_plan
from services.audit.verdict import Check, Measured, judge, verdict_of
from services.core.figures import bounded
from services.models.spec import CUSTOM, params_of

NUM_REMAINING: Final = 3
"""How many of those who remain score the model."""


def review_audit(draft: Draft, erasure: Erasure, line: Line) -> bool:
    """Take the next step of a line's audit; True when there is nothing left to wait for."""
    if erasure.audit is None or line.action != "unlearned" or line.audit is not None:
        return True
    cohort = draft.state.cohorts[line.cohort_id]
    if cohort.head_id is None:
        return True
    rounds = [r for r in draft.state.rounds.values() if r.cohort_id == cohort.id and r.epoch == cohort.epoch]
    opened = next((r for r in rounds if r.kind == "audit" and r.status == "open"), None)
    if draft.state.runs[line.run_id].status in GIVEN_UP:  # nobody can be asked any more
        _conclude(draft, erasure, line, [])
    elif opened is None:
        _open(draft, erasure, line, cohort)
    elif opened.num_open == 0 or opened.waiting_for_quorum:
        _judge(draft, erasure, line, opened)
    return draft.state.lines[line.key].audit is not None


def failure(line: Line) -> str:
    audit = line.audit or {}
    checks = [check for check in audit.get("checks", []) if not check["passed"]]
    why = "; ".join(f"{_about(check)}: {check['why']}" for check in checks)
    says = "says nothing" if audit.get("verdict") == "says-nothing" else "failed"
    retry = "retry the request to train again without the client"
    return f"the audit of cohort {line.cohort_name} {says} ({why}); {retry}"


def _about(check: Mapping[str, Any]) -> str:
    return " of ".join(filter(None, (check["name"], check.get("client"))))


def _open(draft: Draft, erasure: Erasure, line: Line, cohort: Cohort) -> None:
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
        number=cohort.round,
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
    work = _leaver_work(draft, plan, line, cohort, num_members=len(leavers) + cohort.num_members)
    asked = [(member, _with_canary(draft, work, member)) for member in leavers]
    asked += [(member, plan.work("remaining")) for member in remaining]
    tasks = tuple(_task(draft, round, member, work, position) for position, (member, work) in enumerate(asked))
    draft.emit(e.RoundOpened(round, tasks))


def _leavers(draft: Draft, erasure: Erasure, cohort_id: UUID) -> list[Member]:
    """Those of the request who were in this cohort; another cohort may have held others."""
    forgotten = {s.client_id for s in draft.state.subjects.values() if s.erasure_id == erasure.id}
    own = [m for m in draft.state.members.values() if m.cohort_id == cohort_id and m.client_id in forgotten]
    return sorted(own, key=lambda m: m.name)


def _leaver_work(draft: Draft, plan: AuditPlan, line: Line, cohort: Cohort, num_members: int) -> Audit:
    """Shadows go on from the mended model as the run would: its training, one client's share of each round."""
    made = (c for c in draft.state.checkpoints.values() if c.cohort_id == cohort.id and c.stored)
    known: dict[str, Any] = {"before": line.head_before if line.head_before in {c.digest for c in made} else None}
    if plan.num_shadows:
        known["shadow_start"] = cohort.head_digest
        known["shadow_training"] = draft.state.runs[line.run_id].spec.local
        known["shadow_rounds"], known["shadow_share"] = SHADOW_ROUNDS, 1 / num_members
    return plan.work("leaver").model_copy(update=known)


def _with_canary(draft: Draft, work: Audit, member: Member) -> Audit:
    """Looks for the canary that the request names, else for the one that was registered for the client."""
    registered = draft.state.clients[member.client_id].canary
    if work.canary is not None or registered is None:
        return work
    return work.model_copy(update={"canary": Canary.model_validate(registered)})


def _task(draft: Draft, round: Round, member: Member, work: Audit, position: int) -> Task:
    task = new_task(draft, round, member, position, "ready")
    return replace(task, base_round=round.number, work=work.model_dump(mode="json"))


def _judge(draft: Draft, erasure: Erasure, line: Line, round: Round) -> None:
    answers = sorted((u for u in draft.state.updates.values() if u.round_id == round.id), key=lambda u: u.client_name)
    draft.emit(e.RoundClosed(round.id, tuple(u.id for u in answers), draft.now))
    draft.revoke([t for t in draft.open_tasks(round.cohort_id) if t.round_id == round.id])
    _conclude(draft, erasure, line, answers)
    cohort = draft.state.cohorts[line.cohort_id]
    draft.post(cohort, SettleRun(cohort.run_id))


def _conclude(draft: Draft, erasure: Erasure, line: Line, answers: list[Update]) -> None:
    plan, withdrawn = read_plan(erasure.audit or {})
    leavers = {m.client_id: m.name for m in _leavers(draft, erasure, line.cohort_id)}
    found = dict.fromkeys(leavers.values(), Measured())
    found |= {leavers[u.client_id]: _measured(u.metrics) for u in answers if u.client_id in leavers}
    remaining = _mean([u for u in answers if u.client_id not in leavers])
    chance = _chance(plan, draft.state.runs[line.run_id])
    verdict = judge(found, remaining, plan.references, plan.thresholds, chance=chance)
    why = "this threshold was withdrawn, as nothing computes its figure"
    never = [Check(name.removeprefix("max_"), "failed", None, None, None, why) for name in withdrawn]
    verdict = verdict_of([*verdict.checks, *never])
    audit: dict[str, Any] = {
        "passed": verdict.passed,
        "verdict": verdict.outcome,
        "figures": remaining,
        "leavers": {
            name: {"verdict": verdict.of(name), "figures": dict(own.after), "before": dict(own.before)}
            for name, own in sorted(found.items())
        },
        "checks": [_as_json(check) for check in verdict.checks],
    }
    draft.emit(e.LineAudited(line.erasure_id, line.cohort_id, audit))


def _as_json(check: Check) -> dict[str, Any]:
    names = ("client", "name", "passed", "outcome", "value", "before", "lowest", "highest", "why")
    return {name: getattr(check, name) for name in names}


def _measured(metrics: Mapping[str, float]) -> Measured:
    """From one leaver's answer. What is not finite is left out: a verdict then fails."""
    finite = {name: value for name, value in sorted(bounded(metrics).items()) if name != "seconds"}
    before = {name.removeprefix(BEFORE): value for name, value in finite.items() if name.startswith(BEFORE)}
    return Measured({name: value for name, value in finite.items() if not name.startswith(BEFORE)}, before)


def _chance(plan: AuditPlan, run: Run) -> float:
    """Of guessing a class; none is granted when nobody said how many there are."""
    if plan.num_classes is not None:
        return 1 / plan.num_classes
    model = run.spec.model
    return 0.0 if model.name == CUSTOM else 1 / params_of(model).num_classes


def _mean(answers: list[Update]) -> dict[str, float]:
    """Of those who remain: by samples, and of figures that all of them have."""
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
