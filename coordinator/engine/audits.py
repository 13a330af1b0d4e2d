"""The audit of a mended line: the leaver and some who remain score the model; the request's thresholds judge.

It is a round beside the cohort's program, opened when the line has recovered and closed when all have answered or its
deadline has passed. Whatever is missing then fails.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from math import fsum
from typing import Any, Final, Literal

from coordinator.engine import events as e
from coordinator.engine.asking import new_task
from coordinator.engine.draft import Draft
from coordinator.engine.entities import GIVEN_UP, Cohort, Erasure, Line, Member, Round, Run, Task, Update
from services.audit.spec import Audit, AuditPlan, Canary
from services.audit.verdict import judge
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
        _open(draft, erasure, cohort)
    elif opened.num_open == 0 or opened.waiting_for_quorum:
        _judge(draft, erasure, line, opened)
    return draft.state.lines[line.key].audit is not None


def failure(line: Line) -> str:
    checks = (line.audit or {}).get("checks", [])
    why = "; ".join(f"{check['name']}: {check['why']}" for check in checks if not check["passed"])
    return f"the audit of cohort {line.cohort_name} failed ({why}); retry the request to train again without the client"


def _open(draft: Draft, erasure: Erasure, cohort: Cohort) -> None:
    plan, run = AuditPlan.model_validate(erasure.audit), draft.state.runs[cohort.run_id]
    forgotten = {s.client_id for s in draft.state.subjects.values() if s.erasure_id == erasure.id}
    members = sorted((m for m in draft.state.members.values() if m.cohort_id == cohort.id), key=lambda m: m.name)
    leavers = [m for m in members if m.client_id in forgotten]
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
    asked = [(member, _leaver_work(draft, plan, member)) for member in leavers]
    asked += [(member, plan.work("remaining")) for member in remaining]
    tasks = tuple(_task(draft, round, member, work, position) for position, (member, work) in enumerate(asked))
    draft.emit(e.RoundOpened(round, tasks))


def _leaver_work(draft: Draft, plan: AuditPlan, member: Member) -> Audit:
    """Looks for the canary that the request names, else for the one that was registered for the client."""
    work, registered = plan.work("leaver"), draft.state.clients[member.client_id].canary
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
    draft.request(cohort, "post", {"message": "SettleRun", "run_id": str(cohort.run_id)})


def _conclude(draft: Draft, erasure: Erasure, line: Line, answers: list[Update]) -> None:
    plan = AuditPlan.model_validate(erasure.audit)
    forgotten = {s.client_id for s in draft.state.subjects.values() if s.erasure_id == erasure.id}
    figures = {
        **_combined([u for u in answers if u.client_id not in forgotten], "mean"),
        **_combined([u for u in answers if u.client_id in forgotten], "worst", len(forgotten)),
    }
    verdict = judge(figures, plan.references, plan.thresholds, chance=_chance(plan, draft.state.runs[line.run_id]))
    checks = [{"name": c.name, "passed": c.passed, "value": c.value, "why": c.why} for c in verdict.checks]
    audit: dict[str, Any] = {"passed": verdict.passed, "figures": figures, "checks": checks}
    draft.emit(e.LineAudited(line.erasure_id, line.cohort_id, audit))


def _chance(plan: AuditPlan, run: Run) -> float:
    """Of guessing a class; none is granted when nobody said how many there are."""
    if plan.num_classes is not None:
        return 1 / plan.num_classes
    model = run.spec.model
    return 0.0 if model.name == CUSTOM else 1 / params_of(model).num_classes


def _combined(answers: list[Update], how: Literal["mean", "worst"], expected: int = 1) -> dict[str, float]:
    """Of several clients: the mean by samples, or for leavers the highest value over the fewest samples, as the one
    that is forgotten worst decides. Nothing when one of them is missing."""
    if len(answers) < expected or not answers:
        return {}
    reported = [bounded(u.metrics) for u in answers]
    names = set.intersection(*map(set, reported)) - {"seconds"}
    found: dict[str, float] = {}
    for name in sorted(names):
        values = [figures[name] for figures in reported]
        if name.endswith("_samples"):
            found[name] = fsum(values) if how == "mean" else min(values)
        elif how == "worst":
            found[name] = max(values)
        else:
            weights = [float(u.num_samples) for u in answers]
            found[name] = fsum(v * w for v, w in zip(values, weights, strict=True)) / fsum(weights)
    return found
