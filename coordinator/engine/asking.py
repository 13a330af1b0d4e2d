"""Whom a round asks, and the tasks that it hands out."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal
from uuid import UUID

from coordinator.engine import families
from coordinator.engine.allocation import who_serves
from coordinator.engine.draft import Draft
from coordinator.engine.entities import Cohort, Member, Round, Task
from coordinator.engine.selection import lottery_for
from services.core.errors import InvariantBroken
from services.program.contract import AskClients
from services.wire.v1.work import TaskKind


def choose(draft: Draft, cohort: Cohort, ask: AskClients) -> tuple[list[Member], list[Member]]:
    """Who gets a task now, and (asynchronous rounds) who stands by to replace those that finish."""
    run = draft.state.runs[cohort.run_id]
    members, active = draft.members_by_name(cohort.id), draft.active_names(cohort.id)
    if len(active) != cohort.num_members:
        raise InvariantBroken(f"cohort {cohort.id} has {cohort.num_members} members, and {len(active)} are known")
    if ask.clients is not None:
        return [members[name] for name in sorted(ask.clients) if name in members and members[name].active], []
    if cohort.waits_for_group and ask.kind == "train":
        drawn = families.drawn_together(draft, run, cohort.group, ask.round)
        return who_serves(cohort, [members[name] for name in active if name in drawn]), []
    names = draft.over_messages(
        ("serving", cohort.id, cohort.kind),
        lambda: [member.name for member in who_serves(cohort, map(members.__getitem__, active))],
    )
    lottery = lottery_for(draft, cohort, ask)
    if ask.stream is None:
        return [members[name] for name in lottery.draw(names, ask.num_clients, ask.round)], []
    open_tasks = [t for t in draft.open_tasks(cohort.id) if t.kind == ask.kind]
    busy = busy_clients(draft, cohort.id, ask.kind)
    idle = [name for name in names if members[name].client_id not in busy]
    num_now = max(0, ask.stream.in_flight - len(open_tasks))
    chosen = lottery.draw(idle, num_now, ask.round)
    rest = sorted(set(idle) - set(chosen))
    standby = lottery.draw(rest, ask.stream.buffer - 1, ask.round)
    return [members[name] for name in chosen], [members[name] for name in standby]


def busy_clients(draft: Draft, cohort_id: UUID, kind: TaskKind) -> set[UUID]:
    """Clients that have such work in hand, or an answer waiting to be used."""
    buffered = [u for u in draft.state.updates.values() if u.cohort_id == cohort_id and u.status == "buffered"]
    in_hand = {t.client_id for t in draft.open_tasks(cohort_id) if t.kind == kind}
    return in_hand | {u.client_id for u in buffered if u.kind == kind}


def new_task(draft: Draft, round: Round, member: Member, position: int, status: Literal["ready", "standby"]) -> Task:
    return Task(
        id=draft.new_id(),
        run_id=round.run_id,
        cohort_id=round.cohort_id,
        round_id=round.id,
        client_id=member.client_id,
        client_name=member.name,
        kind=round.kind,
        status=status,
        epoch=round.epoch,
        round=round.number,
        base_round=round.number - 1,
        model_digest=round.model_digest,
        position=position,
    )


def asked(task: Task, ask: AskClients) -> Task:
    """The task with what the asking adds to it; asynchronous rounds add nothing."""
    if ask.local is None and ask.work is None:
        return task
    local = ask.local.model_dump(mode="json") if ask.local is not None else None
    return replace(task, local=local, work=ask.work.model_dump(mode="json") if ask.work is not None else None)


def leaver_tasks(draft: Draft, round: Round, ask: AskClients, position: int) -> list[Task]:
    """Work for those whom the cohort's method makes it forget."""
    members = draft.members_by_name(round.cohort_id) if ask.leavers else {}
    tasks: list[Task] = []
    for wanted in ask.leavers:
        task = new_task(draft, round, members[wanted.client], position, "ready")
        work = wanted.work.model_dump(mode="json") if wanted.work is not None else None
        tasks.append(replace(task, kind=wanted.kind, work=work, position=position + len(tasks)))
    return tasks
