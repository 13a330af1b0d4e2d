"""Requests to forget as people handle them: filing, approval, denial, withdrawal, and trying again."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final, Literal
from uuid import UUID

from pydantic import ValidationError

from coordinator.engine import events as e
from coordinator.engine import messages as m
from coordinator.engine.draft import Draft
from coordinator.engine.entities import GIVEN_UP, SETTLED, Client, Erasure, Extension, Ruling, State, Subject
from coordinator.engine.erasure import fallback, four_eyes, planner, recovery, samples
from coordinator.engine.erasure.completion import settle
from coordinator.engine.runs import is_uploaded
from services.core.digests import mentioned_in
from services.core.errors import Rejected
from services.methods.catalogue import AUTO, UNLEARNING
from services.methods.description import Unlearning
from services.wire.message import Message

FARTHEST_DEADLINE: Final = timedelta(days=3650)


def file_erasure(draft: Draft, message: m.FileErasure) -> Erasure:
    if known := draft.state.erasures.get(message.erasure_id):
        return known
    clients = _subjects(draft.state, message)
    _check_method_is_known(message.method)
    _check_params(UNLEARNING.get(message.method), message.params)
    if missing := [d for d in sorted(mentioned_in(message.params)) if not is_uploaded(draft.state, d)]:
        raise Rejected("invalid-request", f"params: {missing[0]} is not stored in this federation; upload it first")
    leavers = frozenset(c.id for c in clients)
    if message.is_tombstoned:
        _withdraw_others(draft, set(leavers))
    duplicate_of = _same_request(draft.state, clients)
    if duplicate_of is None and not message.is_tombstoned and message.scope == "samples":
        duplicate_of = samples.same_request(draft.state, message)
    if duplicate_of is None:
        _check_method_applies(draft.state, message, leavers)
        _check_recovery(draft.state, message, leavers)
    rule = draft.state.four_eyes.get(message.federation_id, "off")
    needs_approval = (message.needs_approval or rule == "all") and not message.is_tombstoned
    erasure = Erasure(
        id=message.erasure_id,
        federation_id=message.federation_id,
        status="awaiting_approval" if needs_approval and duplicate_of is None else "received",
        scope=message.scope,
        samples=dict(message.samples),
        method=message.method,
        guarantee=message.guarantee,
        regulation=message.regulation,
        requested_by=message.requested_by,
        salt=message.salt,
        created_at=draft.now,
        legal_deadline=message.legal_deadline,
        params=dict(message.params),
        recovery_rounds=message.recovery_rounds,
        recovery=message.recovery,
        fallback=message.fallback,
        audit=message.audit,
        duplicate_of=duplicate_of,
        callbacks=list(message.callbacks),
        reward=message.reward,
        ground=message.ground,
        external_ref=message.external_ref,
        filed_by=message.filed_by,
        needs_approval=needs_approval,
        four_eyes=needs_approval and rule != "off",
    )
    forgets_all = message.scope == "client" and duplicate_of is None
    subjects = tuple(Subject(erasure.id, c.id, c.name, active=forgets_all) for c in clients)
    draft.emit(e.ErasureFiled(erasure, subjects))
    if erasure.status == "received" and duplicate_of is None:
        begin(draft, erasure, ask_first=not message.is_tombstoned)
    return draft.state.erasures[erasure.id]


def approve_erasure(draft: Draft, message: m.ApproveErasure) -> Erasure:
    erasure = _open_request(draft.state, message, "awaiting_approval", "approved")
    _rule(draft, erasure, message)
    draft.emit(e.ErasureMoved(erasure.id, "received"))
    begin(draft, erasure)
    return draft.state.erasures[erasure.id]


def restore_erasure(draft: Draft, message: m.RestoreErasure) -> Erasure:
    erasure = draft.state.erasures[message.erasure_id]
    if erasure.status == "awaiting_approval":
        draft.emit(e.ErasureMoved(erasure.id, "received"))
        begin(draft, erasure)
    return draft.state.erasures[erasure.id]


def deny_erasure(draft: Draft, message: m.DenyErasure) -> Erasure:
    erasure = _open_request(draft.state, message, "awaiting_approval", "denied")
    _rule(draft, erasure, message)
    settle(draft, erasure, "denied", message.reason)
    return draft.state.erasures[erasure.id]


def _rule(draft: Draft, erasure: Erasure, message: m.ApproveErasure | m.DenyErasure) -> None:
    four_eyes.check(erasure, message.by, message.made_by)
    eyes = four_eyes.eyes_of(erasure.filed_by, message.by, message.made_by)
    outcome: Literal["approved", "denied"] = "approved" if isinstance(message, m.ApproveErasure) else "denied"
    draft.emit(e.ErasureDecided(erasure.id, Ruling(outcome, message.by, draft.now, message.reason, eyes)))


def extend_erasure(draft: Draft, message: m.ExtendErasure) -> Erasure:
    erasure = _known_request(draft.state, message)
    if erasure.status in SETTLED or erasure.status == "verifying":
        raise Rejected("conflict", f"the request is {erasure.status}; its deadline cannot be extended any more")
    if (granted := erasure.extension) is not None:
        raise Rejected("conflict", f"the deadline was extended before, to {granted.until.isoformat()}; that is once")
    if not max(draft.now, erasure.legal_deadline) < message.until <= draft.now + FARTHEST_DEADLINE:
        later = f"later than the deadline of {erasure.legal_deadline.isoformat()}"
        raise Rejected("invalid-request", f"until must lie in the future, {later}, at most ten years from now")
    extension = Extension(message.until, message.reason, draft.now, message.by, erasure.legal_deadline)
    draft.emit(e.ErasureExtended(erasure.id, extension))
    return draft.state.erasures[erasure.id]


def cancel_erasure(draft: Draft, message: m.CancelErasure) -> Erasure:
    erasure = _open_request(draft.state, message, "awaiting_approval", "cancelled")
    settle(draft, erasure, "cancelled", "withdrawn by the requester")
    return draft.state.erasures[erasure.id]


def retry_erasure(draft: Draft, message: m.RetryErasure) -> Erasure:
    """The review goes on, and asks for another purge when all cohorts are done. A method that gave up begins again;
    what an audit refused is trained again without the client."""
    erasure = _open_request(draft.state, message, "requires_action", "tried again")
    if erasure.fenced_at is None:
        draft.emit(e.ErasureMoved(erasure.id, "received"))
        begin(draft, erasure)
        return draft.state.erasures[erasure.id]
    fallback.try_again(draft, erasure)
    draft.emit(e.ErasureMoved(erasure.id, "executing"))
    return draft.state.erasures[erasure.id]


# --- filing -----------------------------------------------------------------------------------------------------------


def _check_params(method: Unlearning | None, params: Mapping[str, Any]) -> None:
    """Parameters fit the method that is asked for. `auto` takes none: the method is not chosen yet."""
    try:
        (method.spec if method is not None else Message).model_validate(params)
    except ValidationError as error:
        where = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()[:3])
        raise Rejected("invalid-request", f"params do not fit the method: {where}") from None


def _subjects(state: State, message: m.FileErasure) -> list[Client]:
    by_name = {c.name: c for c in state.clients.values() if c.federation_id == message.federation_id}
    missing = [name for name in message.subjects if name not in by_name]
    if missing:
        raise Rejected("not-found", f"this federation has no client {missing[0]}")
    return sorted((by_name[name] for name in set(message.subjects)), key=lambda c: c.name)


def _same_request(state: State, clients: list[Client]) -> UUID | None:
    """The open request that already forgets these clients, before or after its fence."""
    client_ids = {c.id for c in clients}
    own = [s for s in state.subjects.values() if s.client_id in client_ids]
    active = {s.client_id: s.erasure_id for s in own if s.active}
    for client in clients:
        if client.status == "erased" and client.id not in active:
            by = next(s.erasure_id for s in own if s.client_id == client.id and _has_fenced(state, s.erasure_id))
            raise Rejected("already-erased", f"client {client.name} was erased by request {by}; its certificate stands")
    if not active:
        return None
    requests = set(active.values())
    if len(requests) == 1 and set(active) == client_ids:
        return requests.pop()
    raise Rejected("conflict", "another open request forgets some of these clients; file for the others alone")


def _withdraw_others(draft: Draft, client_ids: set[UUID]) -> None:
    under_way = {s.erasure_id for s in draft.state.subjects.values() if s.active and s.client_id in client_ids}
    for erasure_id in sorted(under_way):
        settle(draft, draft.state.erasures[erasure_id], "cancelled", "another request was carried out for its clients")


def _has_fenced(state: State, erasure_id: UUID) -> bool:
    erasure = state.erasures[erasure_id]
    return erasure.scope == "client" and erasure.fenced_at is not None


def _check_method_is_known(method: str) -> None:
    if method != AUTO and method not in UNLEARNING:
        known_names = ", ".join([AUTO, *sorted(UNLEARNING)])
        raise Rejected("method-unavailable", f"no erasure method is called {method}; known are {known_names}")


def _check_method_applies(state: State, message: m.FileErasure, leavers: frozenset[UUID]) -> None:
    if message.method == AUTO or message.is_tombstoned:  # then the fence takes another one that applies
        return
    for option in planner.options(state, message, leavers):
        if option.name == message.method and option.why_not is not None:
            raise Rejected("method-unavailable", f"{option.name} does not apply: {option.why_not}; ask for auto")


def _check_recovery(state: State, message: m.FileErasure, leavers: frozenset[UUID]) -> None:
    if message.recovery is not None and not message.is_tombstoned:
        had = {state.cohorts[one.cohort_id].run_id for one in state.members.values() if one.client_id in leavers}
        concerned = [run for run in state.runs.values() if run.id in had and run.status not in GIVEN_UP]
        recovery.check(message.recovery, concerned)


Verdict = m.ApproveErasure | m.DenyErasure | m.CancelErasure | m.RetryErasure


def _known_request(state: State, message: Verdict | m.ExtendErasure) -> Erasure:
    erasure = state.erasures.get(message.erasure_id)
    if erasure is None:
        raise Rejected("not-found", f"there is no erasure request {message.erasure_id}")
    if message.expected_version not in (None, erasure.version):
        raise Rejected("precondition-failed", f"the request is at version {erasure.version}; read it again")
    return erasure


def _open_request(state: State, message: Verdict, status: str, what: str) -> Erasure:
    erasure = _known_request(state, message)
    if erasure.status != status:
        raise Rejected("conflict", f"the request is {erasure.status}; only one that is {status} can be {what}")
    return erasure


def begin(draft: Draft, erasure: Erasure, *, ask_first: bool = True) -> None:
    """Have the fence put up, or first ask the workers whether they have the samples to be forgotten."""
    if erasure.scope == "samples" and ask_first:
        samples.order(draft, erasure)
        if waiting := samples.unconfirmed(draft.state, erasure):
            draft.emit(e.ErasureMoved(erasure.id, "received", waiting))
            return
    draft.request(erasure, "fence", {"erasure_id": str(erasure.id)})
