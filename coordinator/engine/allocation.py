"""Which clients serve which job, where several jobs of a federation go on at the same time.

A job is an open run, or a request to forget whose cohorts still train. A federation without an allocation has no
periods: every member serves all its cohorts. With one, clients are divided anew whenever a run is created, a client
joins, a fence falls or the allocation changes; that begins a period. Its figures and its outcome are stored, and
rounds look at the outcome only (`Member.allotted`), until the next period. A job that ends begins none: what the others
are served by must not depend on which of them was quicker. Rounds that are open go on as they were asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from uuid import UUID

from coordinator.engine import events as e
from coordinator.engine import families
from coordinator.engine import messages as m
from coordinator.engine.draft import Draft
from coordinator.engine.entities import (
    ENDED,
    SETTLED,
    Allotment,
    Client,
    Cohort,
    Erasure,
    Federation,
    Measured,
    Member,
    Period,
    Run,
    State,
)
from services.core.errors import Rejected
from services.core.seeds import derive
from services.incentive.division import Candidate, Job, divide
from services.incentive.spec import Incentives, Resources


def change_allocation(draft: Draft, message: m.ChangeAllocation) -> Federation:
    known = draft.state.federations.get(message.federation_id)
    if known is None:
        raise Rejected("not-found", f"there is no federation {message.federation_id}")
    changed = replace(known, allocation=message.allocation, incentives=message.incentives)
    draft.emit(e.AllocationChanged(changed))
    begin_period(draft, known.id)
    return changed


def begin_period(draft: Draft, federation_id: UUID) -> None:
    """Divide the clients anew, if the federation divides them; if it does so no more, everybody serves everything."""
    federation = draft.state.federations.get(federation_id)
    if federation is None or federation.allocation is None:
        open_runs = [run.id for run in _open_runs(draft.state, federation_id)]
        for cohort in sorted(draft.state.cohorts.values(), key=lambda c: c.id):
            if cohort.allotment is not None and cohort.run_id in open_runs:
                draft.emit(e.CohortAllotted(cohort.id, None, ()))
        return
    incentives = federation.incentives or Incentives()
    owners = _owners(draft.state, federation.id)
    jobs = tuple(_job(owner, incentives) for owner in {owner.id: owner for owner in owners.values()}.values())
    candidates = _candidates(draft.state, owners)
    number = max((p.number for p in draft.state.periods.values() if p.federation_id == federation.id), default=0) + 1
    division = divide(federation.allocation, jobs, candidates, incentives, number)
    draft.emit(
        e.PeriodBegun(
            Period(
                federation_id=federation.id,
                number=number,
                strategy=federation.allocation,
                begun_at=draft.now,
                incentives=incentives,
                jobs=jobs,
                candidates=candidates,
                division=division,
            )
        )
    )
    for cohort_id, owner in owners.items():
        members = _members(draft.state, cohort_id)
        serving = _serving(members, division.jobs, owner.id, incentives)
        allotment = Allotment(
            period=number,
            job_id=owner.id,
            is_erasure=isinstance(owner, Erasure),
            pool=_job(owner, incentives).pool,
            num_clients=len(serving),
            incentives=incentives,
        )
        left_out = tuple(sorted(member.client_id for member in members if member.name not in serving))
        draft.emit(e.CohortAllotted(cohort_id, allotment, left_out))


def who_serves(cohort: Cohort, members: Iterable[Member]) -> list[Member]:
    """The members who serve the cohort's job, among those who may be asked; all of these, when the former have left.
    Clusters are formed from the profiles of everybody."""
    everybody = list(members)
    return [x for x in everybody if x.allotted or cohort.kind == "profile"] or everybody


def _open_runs(state: State, federation_id: UUID) -> list[Run]:
    return [run for run in state.runs.values() if run.federation_id == federation_id and run.status not in ENDED]


def _owners(state: State, federation_id: UUID) -> dict[UUID, Run | Erasure]:
    """The job that each training cohort works for: the newest request that is not done with it, or else its run. In the
    order in which the jobs came."""
    found: list[tuple[Cohort, Run | Erasure]] = []
    for run in _open_runs(state, federation_id):
        training = [c for c in families.cohorts_of(state, run.id) if c.phase in families.TRAINING]
        found += [(c, _request(state, c) or run) for c in training if c.kind != "merge"]
    found.sort(key=lambda one: (one[1].created_at, one[1].id, one[0].name, one[0].id))
    return {cohort.id: owner for cohort, owner in found}


def _request(state: State, cohort: Cohort) -> Erasure | None:
    open_ones = [x for x in state.affected_cohorts.values() if x.cohort_id == cohort.id and x.done_at is None]
    requests = [(x.epoch_after, state.erasures[x.erasure_id]) for x in open_ones]
    unsettled = [(epoch, one) for epoch, one in requests if one.status not in SETTLED]
    return max(unsettled, key=lambda one: (one[0], one[1].id))[1] if unsettled else None


def _job(owner: Run | Erasure, incentives: Incentives) -> Job:
    reward = owner.reward if isinstance(owner, Erasure) else owner.spec.reward
    name = f"erasure {owner.id}" if isinstance(owner, Erasure) else f"run {owner.name}"
    return Job(owner.id, name, incentives.pool if reward is None else reward)


def _candidates(state: State, owners: dict[UUID, Run | Erasure]) -> tuple[Candidate, ...]:
    """Every active member of the cohorts, with the jobs that it may serve in the order of the jobs."""
    may_serve: dict[UUID, dict[UUID, None]] = {}
    for cohort_id, owner in owners.items():
        for member in _members(state, cohort_id):
            may_serve.setdefault(member.client_id, {})[owner.id] = None
    order = list(dict.fromkeys(owner.id for owner in owners.values()))
    clients = sorted((state.clients[client_id] for client_id in may_serve), key=lambda c: c.name)
    return tuple(
        _candidate(c, tuple(sorted(may_serve[c.id], key=order.index)), state.measures.get(c.id)) for c in clients
    )


def _candidate(client: Client, jobs: tuple[UUID, ...], measured: Measured | None) -> Candidate:
    declared, found = declared_by(client), measured or Measured(samples=1)
    return Candidate(
        client=client.name,
        jobs=jobs,
        samples=found.samples if declared.samples is None else declared.samples,
        seconds=found.seconds if declared.seconds is None else declared.seconds,
        bytes=2 * found.num_bytes if declared.bytes is None else declared.bytes,
        stored_bytes=found.num_bytes if declared.stored_bytes is None else declared.stored_bytes,
    )


def declared_by(client: Client) -> Resources:
    return Resources() if client.resources is None else Resources.model_validate(client.resources)


def _members(state: State, cohort_id: UUID) -> list[Member]:
    return sorted((x for x in state.members.values() if x.cohort_id == cohort_id and x.active), key=lambda x: x.name)


def _serving(members: list[Member], jobs: Mapping[str, UUID], job_id: UUID, incentives: Incentives) -> set[str]:
    """Names of the clients allotted to the job, and of others by lot where they are fewer than every cohort has."""
    names = [member.name for member in members]
    allotted = [name for name in names if jobs.get(name) == job_id]
    others = sorted(set(names) - set(allotted), key=lambda name: derive(incentives.seed, "beside", name))
    return {*allotted, *others[: max(0, incentives.at_least - len(allotted))]}
