"""What workers do: sessions, claims, heartbeats, results, failures, and the lapse of leases and deadlines.

A worker's word counts while it holds the task's newest token, its cohort's epoch is unchanged, and the round still
takes answers. A lease that ran out is forgiven as long as nobody else has claimed the task.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from uuid import UUID

from coordinator.engine import events as e
from coordinator.engine import ledger
from coordinator.engine import messages as m
from coordinator.engine.draft import Draft
from coordinator.engine.entities import ENDED, Client, Facts, Round, Run, Task, Update
from coordinator.engine.erasure.recovery import most_samples
from coordinator.engine.programs import check_round
from coordinator.engine.replies import Accepted, FailureNoted, Granted, Refused, Renewed
from services.core.errors import InvariantBroken, Rejected
from services.core.figures import LARGEST, MOST_SAMPLES, bounded, impossible
from services.wire.v1.work import FIGURES_ONLY

MAX_BACKOFF_S = 60.0
MAX_BACKOFF = timedelta(seconds=MAX_BACKOFF_S)
"""A task that is to wait longer was given back while the clock was ahead."""


def open_session(draft: Draft, message: m.OpenSession) -> Client:
    client = working_client(draft, message.client_id)
    draft.emit(e.SessionOpened(client.id, draft.now, message.agent_version, message.devices, message.canary))
    if message.frees_tasks:
        for task in sorted(draft.state.tasks.values(), key=lambda t: t.id):
            if task.client_id == client.id and task.status == "leased":
                draft.emit(e.TaskReleased(task.id, "the agent started anew", draft.now))
    return draft.state.clients[client.id]


def claim_tasks(draft: Draft, message: m.ClaimTasks) -> tuple[Granted, ...]:
    client = working_client(draft, message.client_id)
    if client.exclusions != client.exclusions_acked:
        detail = "samples of this client must be left out: read /v1/exclusions, write them down, acknowledge them"
        raise Rejected("ledger-behind", detail)
    ready = [t for t in draft.state.tasks.values() if t.client_id == client.id and t.status == "ready"]
    granted = []
    for task in sorted(ready, key=lambda t: t.id):
        if message.run_id not in (None, task.run_id):
            continue
        run, cohort = draft.state.runs[task.run_id], draft.state.cohorts[task.cohort_id]
        waiting = task.due_at is not None and draft.now < task.due_at <= draft.now + MAX_BACKOFF
        is_barred = client.status == "erased" and cohort.unlearning is None and task.kind != "audit"
        if run.status != "running" or cohort.epoch != task.epoch or waiting or is_barred:
            continue
        base_round, model_digest = task.base_round, task.model_digest
        if draft.state.rounds[task.round_id].is_stream and cohort.stream_round_id is not None:
            newest = draft.state.rounds[cohort.stream_round_id]
            base_round, model_digest = newest.number - 1, newest.model_digest
        until = draft.now + timedelta(seconds=run.spec.lease_s)
        draft.emit(e.TaskLeased(task.id, draft.new_id().hex, draft.now, until, base_round, model_digest))
        weights = _model(draft, run, model_digest)
        granted.append(Granted(draft.state.tasks[task.id], run, cohort, weights.num_bytes, client.exclusions))
    return tuple(granted)


def renew_lease(draft: Draft, message: m.RenewLease) -> Renewed:
    task = _own_task(draft, message.task_id, message.client_id)
    if refusal := _refusal(draft, task, message.lease_token):
        raise Rejected(refusal.code, refusal.detail)
    run = draft.state.runs[task.run_id]
    until = draft.now + timedelta(seconds=run.spec.lease_s)
    draft.emit(e.LeaseRenewed(task.id, until, message.progress))
    return Renewed(until)


def submit_result(draft: Draft, message: m.SubmitResult) -> Accepted | Refused:
    task = _own_task(draft, message.task_id, message.client_id)
    if task.status == "done":
        return _replayed(draft, task, message)
    if refusal := _refusal(draft, task, message.lease_token):
        round = draft.state.rounds[task.round_id]
        if refusal.code in ("round-closed", "epoch-fenced") and task.lease_token == message.lease_token:
            draft.emit(e.UpdateRefused(task.id, round.id, refusal.code))
            return refusal
        raise Rejected(refusal.code, refusal.detail)
    figures = bounded(message.metrics)
    num_bytes = _check_result(draft, task, message, figures)
    round = draft.state.rounds[task.round_id]
    if stale := _staleness_refusal(draft, task, round):
        draft.emit(e.UpdateRefused(task.id, round.id, stale.code))
        draft.emit(e.TaskReleased(task.id, stale.detail, draft.now))
        return stale
    update = Update(
        id=draft.new_id(),
        run_id=task.run_id,
        cohort_id=task.cohort_id,
        round_id=task.round_id,
        task_id=task.id,
        client_id=task.client_id,
        client_name=task.client_name,
        kind=task.kind,
        status="buffered",
        epoch=task.epoch,
        base_round=task.base_round,
        base_digest=task.model_digest,
        digest=message.digest,
        num_samples=message.num_samples,
        metrics=figures,
        received_at=draft.now,
        seconds=max(0.0, (draft.now - task.leased_at).total_seconds()) if task.leased_at is not None else 0.0,
        num_bytes=num_bytes,
    )
    draft.emit(e.UpdateAccepted(update))
    ledger.charge(draft, update)
    _after_answer(draft, task)
    return Accepted(update.id)


def fail_task(draft: Draft, message: m.FailTask) -> FailureNoted:
    task = _own_task(draft, message.task_id, message.client_id)
    if refusal := _refusal(draft, task, message.lease_token):
        raise Rejected(refusal.code, refusal.detail)
    run = draft.state.runs[task.run_id]
    if message.handed_back:
        draft.emit(e.TaskReleased(task.id, message.reason, draft.now))
        return FailureNoted(will_retry=True)
    if message.retryable and task.num_failures + 1 < run.spec.max_attempts:
        pause = min(MAX_BACKOFF_S, 2.0**task.num_failures)
        not_before = draft.now + timedelta(seconds=pause)
        draft.emit(e.TaskReleased(task.id, message.reason, not_before, True, message.log_tail))
        return FailureNoted(will_retry=True)
    draft.emit(e.TaskFailed(task.id, message.reason, message.log_tail))
    _after_answer(draft, task)
    return FailureNoted(will_retry=False)


def lease_ran_out(draft: Draft, message: m.LeaseRanOut) -> None:
    task = draft.state.tasks.get(message.task_id)
    if task is None or task.status != "leased" or task.lease_token != message.lease_token:
        return
    longest = timedelta(seconds=draft.state.runs[task.run_id].spec.lease_s)
    if task.due_at is None or draft.now < task.due_at <= draft.now + longest:
        return
    is_over = task.due_at <= draft.now
    reason = "the lease ran out without a heartbeat" if is_over else "the lease was taken while the clock was ahead"
    draft.emit(e.TaskReleased(task.id, reason))


def deadline_passed(draft: Draft, message: m.DeadlinePassed) -> None:
    round = draft.state.rounds.get(message.round_id)
    if round is None or round.status != "open" or round.due_at is None or round.due_at > draft.now:
        return
    draft.emit(e.QuorumAwaited(round.id))
    check_round(draft, round.id)


def withdraw_task(draft: Draft, task: Task) -> None:
    """The task will never be answered: its client left."""
    draft.emit(e.TaskWithdrawn(task.id))
    _after_answer(draft, task)


# --- rules ------------------------------------------------------------------------------------------------------------


def active_client(draft: Draft, client_id: UUID) -> Client:
    client = draft.state.clients[client_id]
    if client.status == "erased":
        raise Rejected("client-erased", f"client {client.name} was erased from its federation; stop the agent")
    if client.status != "active":
        raise Rejected("client-removed", f"client {client.name} was removed from its federation; stop the agent")
    return client


def working_client(draft: Draft, client_id: UUID) -> Client:
    """One that may have tasks: an active client, or one that its own erasure still asks for work."""
    client = draft.state.clients[client_id]
    return client if client.status == "erased" and client.needed_by is not None else active_client(draft, client_id)


def _model(draft: Draft, run: Run, digest: str) -> Facts:
    """What is known of a model that a run's tasks start from."""
    facts = draft.state.facts.get((run.federation_id, digest))
    if facts is None:
        raise InvariantBroken(f"model {digest} of run {run.name} is not stored here any more; upload it again")
    return facts


def _own_task(draft: Draft, task_id: UUID, client_id: UUID) -> Task:
    working_client(draft, client_id)
    task = draft.state.tasks.get(task_id)
    if task is None or task.client_id != client_id:
        raise Rejected("not-found", f"this client has no task {task_id}")
    return task


def _refusal(draft: Draft, task: Task, token: str) -> Refused | None:
    """Why a worker's word about this task no longer counts; None when it does."""
    cohort, run = draft.state.cohorts[task.cohort_id], draft.state.runs[task.run_id]
    if task.epoch != cohort.epoch:
        return Refused(
            "epoch-fenced", f"cohort {cohort.name} moved to epoch {cohort.epoch}; drop this work, claim again"
        )
    if task.lease_token != token:
        return Refused(
            "lease-lost", "the task was handed out again after the lease ran out; drop this work, claim again"
        )
    if task.status in ("leased", "ready"):
        return None
    if run.status in ENDED:
        return Refused("round-closed", f"run {run.name} is {run.status}; drop this work")
    if task.status == "revoked":
        return Refused("round-closed", f"round {task.round} closed before this arrived; drop this work, claim again")
    return Refused("lease-lost", f"the task is {task.status}; drop this work, claim again")


def _replayed(draft: Draft, task: Task, message: m.SubmitResult) -> Accepted:
    update = next((u for u in draft.state.updates.values() if u.task_id == task.id), None)
    if update is None or update.digest != message.digest or task.lease_token != message.lease_token:
        raise Rejected("already-submitted", "this task already has a result; drop this work, claim again")
    return Accepted(update.id)


def _check_result(draft: Draft, task: Task, message: m.SubmitResult, figures: Mapping[str, float]) -> int | None:
    """How large the update is; None of figures."""
    if wrong := impossible(figures):
        raise Rejected("invalid-result", wrong)
    _check_num_samples(draft, task, message.num_samples)
    if task.kind in FIGURES_ONLY:
        if message.digest is not None:
            raise Rejected("invalid-result", f"a task of kind {task.kind} returns figures; leave `update` out")
        return None
    if message.digest is None:
        raise Rejected("invalid-result", f"a task of kind {task.kind} must name its uploaded `update`")
    own = [b for b in draft.state.blobs.values() if b.origin_id == task.id and b.digest == message.digest]
    blob = next((b for b in own if b.status == "stored"), None)
    if blob is None:
        raise Rejected(
            "blob-missing", f"{message.digest} was not uploaded for this task; upload it for it, then submit again"
        )
    if not blob.finite:
        detail = f"the update contains NaN, Inf or numbers beyond {LARGEST:g}; report the task as failed instead"
        raise Rejected("not-finite", detail)
    model = _model(draft, draft.state.runs[task.run_id], task.model_digest)
    if blob.layout_digest != model.updatable_digest:
        detail = "an update holds the floating tensors of the model it was trained from: same names, shapes and dtypes"
        raise Rejected("wrong-layout", detail)
    return blob.num_bytes


def _check_num_samples(draft: Draft, task: Task, num_samples: int) -> None:
    """A count of samples is a weight: no client gives itself more than was agreed with it, or than the run allows; a
    recovery that generates samples allows so many more."""
    client, training = draft.state.clients[task.client_id], draft.state.runs[task.run_id].spec.training
    factor = most_samples(draft.state.cohorts[task.cohort_id], task.base_round + 1)
    for most, where in (
        (MOST_SAMPLES, "anybody"),
        (client.max_samples, f"client {client.name} as it was enrolled (max_samples)"),
        (training.max_samples_per_client, "the run (training.max_samples_per_client)"),
    ):
        if most is not None and num_samples > most * factor:
            raise Rejected("out-of-bounds", f"{num_samples} samples are claimed, and at most {most} granted to {where}")


def _staleness_refusal(draft: Draft, task: Task, round: Round) -> Refused | None:
    cohort = draft.state.cohorts[task.cohort_id]
    if round.staleness_bound is None:
        return None
    staleness = cohort.round - task.base_round
    if staleness <= round.staleness_bound:
        return None
    return Refused("too-stale", f"the base is {staleness} steps old, allowed are {round.staleness_bound}; claim again")


def _after_answer(draft: Draft, task: Task) -> None:
    round, cohort = draft.state.rounds[task.round_id], draft.state.cohorts[task.cohort_id]
    if round.is_stream:
        _replace_in_stream(draft, task)
        if cohort.stream_round_id is not None:
            check_round(draft, cohort.stream_round_id)
    else:
        check_round(draft, round.id)


def _replace_in_stream(draft: Draft, task: Task) -> None:
    if task.status not in ("ready", "leased"):
        return
    standby = [t for t in draft.open_tasks(task.cohort_id) if t.status == "standby" and t.kind == task.kind]
    if standby:
        draft.emit(e.TaskPromoted(min(standby, key=lambda t: (t.round, t.position)).id))
