"""What operators do: create, pause, resume, recover and cancel runs, remove clients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

from coordinator.engine import events as e
from coordinator.engine import families
from coordinator.engine import messages as m
from coordinator.engine.allocation import begin_period
from coordinator.engine.draft import Draft
from coordinator.engine.entities import ENDED, GIVEN_UP, OPEN_TASK, Cohort, Run, State
from coordinator.engine.erasure import recovery
from coordinator.engine.erasure.planner import RECOVERY_ROUNDS
from coordinator.engine.posting import asks_to_settle
from coordinator.engine.programs import has_open_work
from coordinator.engine.work import withdraw_task
from services.core.errors import Rejected
from services.core.figures import LARGEST
from services.methods.catalogue import RECOVERY
from services.wire.v1.runs import RunSpec, policy_of


def create_run(draft: Draft, message: m.CreateRun) -> Run:
    if known := draft.state.runs.get(message.run_id):
        return known
    spec = message.spec
    enrolled = [c for c in draft.state.clients.values() if c.federation_id == message.federation_id]
    clients = {c.name: c for c in enrolled if c.status == "active"}
    names = sorted(spec.clients) if spec.clients is not None else sorted(clients)
    if missing := [name for name in names if name not in clients]:
        raise Rejected("invalid-run", f"not enrolled in this federation: {', '.join(missing[:10])}; enrol them first")
    if not names:
        raise Rejected("invalid-run", "the federation has no clients; enrol some first")
    _check_named(draft, message.federation_id, spec)
    for field in ("clients_per_round", "quorum"):
        wanted = getattr(spec.training, field, None)
        if wanted is not None and wanted > len(names):
            raise Rejected("invalid-run", f"training.{field} is {wanted} and the run has {len(names)} clients")
    spec = spec.model_copy(update={"training": spec.training.settled(len(names), spec.stop.rounds)})
    run = Run(
        id=message.run_id,
        federation_id=message.federation_id,
        name=spec.name,
        spec=spec,
        status="running",
        created_at=draft.now,
        num_clients=len(names),
    )
    draft.emit(e.RunCreated(run))
    families.form(draft, run, names, {name: clients[name].id for name in names})
    begin_period(draft, run.federation_id)
    return run


def pause_run(draft: Draft, message: m.PauseRun) -> Run:
    run = _run(draft, message.run_id, message.expected_version)
    if run.status in ENDED:
        raise Rejected("conflict", f"run {run.name} is {run.status}; only a running one can be paused")
    if run.status == "running" or (message.hold == "operator" and run.hold != "operator"):
        draft.emit(e.RunPaused(run.id, message.hold, message.reason))
    return draft.state.runs[run.id]


def resume_run(draft: Draft, message: m.ResumeRun) -> Run:
    run = _run(draft, message.run_id, message.expected_version)
    if run.status in ("completed", "cancelled"):
        raise Rejected("conflict", f"run {run.name} is {run.status}; only a paused or failed one can be resumed")
    if run.status == "failed":
        _revive(draft, run)
    if run.status == "paused":
        draft.emit(e.RunResumed(run.id))
        for task in sorted(draft.state.tasks.values(), key=lambda t: t.id):
            if task.run_id == run.id and task.status == "failed":
                cohort = draft.state.cohorts[task.cohort_id]
                if task.round_id == cohort.awaiting and task.epoch == cohort.epoch:
                    draft.emit(e.TaskReissued(task.id))
        for cohort in sorted(draft.state.cohorts.values(), key=lambda c: c.id):
            round = draft.state.rounds.get(cohort.awaiting) if cohort.awaiting is not None else None
            if cohort.run_id == run.id and round is not None and not has_open_work(draft, round):
                draft.emit(e.RoundStarved(round.id))
    return draft.state.runs[run.id]


def _revive(draft: Draft, run: Run) -> None:
    """Go on with a failed run: each line that had not reached its end starts anew from its head, in a new epoch, so
    that what is left of the old work is worthless."""
    living = [c for c in families.cohorts_of(draft.state, run.id) if c.phase != "retired"]
    lines = [c for c in living if c.kind != "merge" and c.num_members > 0]
    if not lines:
        raise Rejected("conflict", f"run {run.name} has no clients left; create a new one")
    draft.emit(e.RunReopened(run.id, "resumed after it had failed"))
    for cohort in living:
        stop_cohort(draft, cohort)
    for cohort in lines:
        was_cut = cohort.phase == "finished" and cohort.program_state is None  # by an erasure, when nothing was trained
        if was_cut or cohort.phase != "finished":
            draft.emit(e.CohortRevived(cohort.id, cohort.epoch + 1))
            for affected in [x for x in draft.state.affected_cohorts.values() if x.cohort_id == cohort.id]:
                if affected.epoch_after == cohort.epoch:
                    draft.emit(e.AffectedCohortFenced(replace(affected, epoch_after=cohort.epoch + 1)))
    for cohort in living:
        if cohort.kind == "merge" and cohort.phase != "finished":
            draft.emit(e.CohortEnded(cohort.id, "finished", "its models are merged anew when they are trained"))
        elif cohort not in lines and cohort.phase != "finished":  # it keeps what it has; the others go on
            draft.emit(e.CohortEnded(cohort.id, "finished", f"cohort {cohort.name} has no clients left"))
    draft.post(living[0], m.SettleRun(run.id))


def recover_run(draft: Draft, message: m.RecoverRun) -> Run:
    """The next rounds of each cohort are those of a recovery. A completed run is opened again for them; a round that is
    under way is finished first."""
    run = _run(draft, message.run_id, message.expected_version)
    if run.status in GIVEN_UP:
        raise Rejected("conflict", f"run {run.name} is {run.status}; nothing is trained in it any more")
    recovery.check(message.recovery, [run], can_compare=message.compared_with is not None)
    living = [c for c in families.cohorts_of(draft.state, run.id) if c.phase != "retired" and c.num_members > 0]
    lines = [c for c in living if c.kind != "merge" and c.program != families.NEWCOMER]
    if not lines or any(c.kind == "profile" or (c.head_id is None and c.unlearning is None) for c in lines):
        raise Rejected("conflict", f"run {run.name} has no trained model to recover yet; wait for its first round")
    if busy := [c.name for c in lines if c.unlearning is not None or c.is_recovering]:
        raise Rejected("conflict", f"cohort {busy[0]} of run {run.name} is recovering already; wait until it is done")
    num_rounds = message.num_rounds or RECOVERY[message.recovery.method].recovery_rounds or RECOVERY_ROUNDS
    if run.status == "completed":
        draft.emit(e.RunReopened(run.id, f"recovering by {message.recovery.method}"))
    for cohort in lines:
        first = cohort.round + (cohort.phase in ("asking", "computing"))
        begun = recovery.stage(message.recovery, run, first, num_rounds, message.compared_with).begun(first)
        draft.emit(e.RecoveryBegun(cohort.id, begun, recovery.extra_rounds(begun, run, cohort)))
    return draft.state.runs[run.id]


def cancel_run(draft: Draft, message: m.CancelRun) -> Run:
    run = _run(draft, message.run_id, message.expected_version)
    if run.status == "cancelled":
        return run
    if run.status == "failed":
        raise Rejected("conflict", f"run {run.name} is already {run.status}")
    draft.emit(e.RunEnded(run.id, "cancelled", message.reason, draft.now))
    _stop_work(draft, run.id)
    return draft.state.runs[run.id]


def settle_run(draft: Draft, message: m.SettleRun) -> None:
    run = draft.state.runs[message.run_id]
    for job in list(draft.state.jobs.values()):
        # One look answers all who asked for it: a tree of a hundred clients ends with two hundred cohorts at once.
        if job.id == message.job_id or (job.status == "ready" and asks_to_settle(job, run.id)):
            draft.emit(e.JobSettled(job.id, "done"))
    audited = [r for r in draft.state.rounds.values() if r.run_id == run.id and r.kind == "audit"]
    if run.status in ENDED or any(r.status == "open" for r in audited):
        return
    living = [c for c in families.cohorts_of(draft.state, run.id) if c.phase != "retired"]
    cohorts = [c for c in living if c.program != families.NEWCOMER]
    failed = [c for c in cohorts if c.phase == "failed"]
    if failed:
        draft.emit(e.RunEnded(run.id, "failed", failed[0].reason or "a cohort failed", draft.now))
        _stop_work(draft, run.id)
    elif all(c.phase == "finished" for c in cohorts) and not families.refresh_merge(draft, run):
        lines = [c for c in cohorts if c.kind != "merge"]
        rounds = run.spec.stop.rounds
        if all(c.num_members == 0 and c.round < rounds + min(0, c.extra_rounds) for c in lines):
            reason = "the run has no clients left" if lines else "an erasure left no cohort of the run"
            draft.emit(e.RunEnded(run.id, "failed", reason, draft.now))
        else:
            reason = next((c.reason for c in lines if c.reason), "finished")
            draft.emit(e.RunEnded(run.id, "completed", reason, draft.now))
        _stop_work(draft, run.id)
        for cohort in living:
            if cohort.program == families.NEWCOMER:
                draft.emit(e.CohortRetired(cohort.id, "the run ended before it could join a cluster"))


def remove_client(draft: Draft, message: m.RemoveClient) -> None:
    client = draft.state.clients[message.client_id]
    if client.status != "active":
        return
    draft.emit(e.ClientRemoved(client.id))
    for member in sorted(draft.state.members.values(), key=lambda member: member.cohort_id):
        if member.client_id == client.id and member.active:
            draft.emit(e.MemberLeft(member.cohort_id, client.id))
    for task in sorted(draft.state.tasks.values(), key=lambda t: t.id):
        if task.client_id != client.id:
            continue
        counts = task.status == "failed" and draft.state.rounds[task.round_id].status == "open"
        if counts or task.status in OPEN_TASK:
            withdraw_task(draft, task)


def stop_cohort(draft: Draft, cohort: Cohort) -> None:
    """End everything that is open in a cohort: its work, and updates that wait in a buffer."""
    end_work(draft, cohort)
    updates = draft.state.updates.values()
    buffered = [u.id for u in updates if u.cohort_id == cohort.id and u.status == "buffered"]
    if buffered:
        draft.emit(e.UpdatesDiscarded(tuple(sorted(buffered))))


def end_work(draft: Draft, cohort: Cohort, *, spares: str | None = None) -> None:
    """End the open tasks, rounds and kernels of a cohort, but for tasks and rounds of the kind `spares`."""
    draft.revoke([task for task in draft.open_tasks(cohort.id) if task.kind != spares])
    for round in sorted(draft.state.rounds.values(), key=lambda r: r.id):
        if round.cohort_id == cohort.id and round.status == "open" and round.kind != spares:
            draft.emit(e.RoundAbandoned(round.id, draft.now))
    _cancel_jobs(draft, cohort_id=cohort.id)


def _check_named(draft: Draft, federation_id: UUID, spec: RunSpec) -> None:
    """A run begins with an operator's file or with a model that is served, never with what a client sent: a client's
    update would not be seen in its lineage."""
    state, init, data = draft.state, spec.init, spec.validation.data
    if init is not None and (federation_id, init) in state.superseded:
        raise Rejected("invalid-run", "init was superseded by an erasure; start from another model")
    if init is not None and not (is_uploaded(state, init) or _is_served(state, federation_id, init)):
        raise Rejected("invalid-run", f"init: {init} is not stored in this federation; upload it first")
    if data is not None and not is_uploaded(state, data):
        raise Rejected("invalid-run", f"validation.data: {data} is not stored in this federation; upload it first")
    for parameter, digest in policy_of(spec.selection).blobs().items():
        if not is_uploaded(state, digest):
            detail = f"selection.{parameter}: {digest} is not stored in this federation; upload it first"
            raise Rejected("invalid-run", detail)
    if init is not None and not state.facts[federation_id, init].finite:
        raise Rejected("invalid-run", f"init contains NaN, Inf or numbers beyond {LARGEST:g}; start from other weights")


def is_uploaded(state: State, digest: str) -> bool:
    stored = (b for b in state.blobs.values() if b.origin == "operator" and b.status == "stored")
    return any(blob.digest == digest for blob in stored)


def _is_served(state: State, federation_id: UUID, digest: str) -> bool:
    served = (c for c in state.checkpoints.values() if c.digest == digest and c.superseded_by is None and c.stored)
    return any(state.runs[c.run_id].federation_id == federation_id for c in served)


def _run(draft: Draft, run_id: UUID, expected_version: int | None) -> Run:
    run = draft.state.runs.get(run_id)
    if run is None:
        raise Rejected("not-found", f"there is no run {run_id}")
    if expected_version is not None and run.version != expected_version:
        raise Rejected("precondition-failed", f"run {run.name} is at version {run.version}; read it again")
    return run


def _stop_work(draft: Draft, run_id: UUID) -> None:
    draft.revoke(sorted((t for t in draft.state.tasks.values() if _is_open(t, run_id)), key=lambda t: t.id))
    for round in sorted(draft.state.rounds.values(), key=lambda r: r.id):
        if round.run_id == run_id and round.status == "open":
            draft.emit(e.RoundAbandoned(round.id, draft.now))
    _cancel_jobs(draft, run_id=run_id)


def _is_open(task: Any, run_id: UUID) -> bool:
    return task.run_id == run_id and task.status in OPEN_TASK


def _cancel_jobs(draft: Draft, *, run_id: UUID | None = None, cohort_id: UUID | None = None) -> None:
    for job in sorted(draft.state.jobs.values(), key=lambda j: j.id):
        of_interest = job.run_id == run_id or (cohort_id is not None and job.cohort_id == cohort_id)
        if of_interest and job.kind == "kernel" and job.status in ("ready", "leased"):
            draft.emit(e.JobSettled(job.id, "cancelled"))
