"""Requests to forget as people handle them: filing, approval, denial, withdrawal, and trying again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from pydantic import ValidationError

from coordinator.engine import events as e
from coordinator.engine import messages as m
from coordinator.engine.draft import Draft
from coordinator.engine.entities import Client, Erasure, State, Subject
from coordinator.engine.erasure import fallback, planner, samples
from coordinator.engine.erasure.completion import settle
from services.core.errors import Rejected
from services.methods.catalogue import AUTO, UNLEARNING
from services.methods.description import Unlearning
from services.wire.message import Message


def file_erasure(draft: Draft, message: m.FileErasure) -> Erasure:
    if known := draft.state.erasures.get(message.erasure_id):
        return known
    clients = _subjects(draft.state, message)
    _check_method_is_known(message.method)
    _check_params(UNLEARNING.get(message.method), message.params)
    leavers = frozenset(c.id for c in clients)
    if message.is_tombstoned:
        _withdraw_others(draft, set(leavers))
    duplicate_of = _same_request(draft.state, clients)
    if duplicate_of is None and not message.is_tombstoned and message.scope == "samples":
        duplicate_of = samples.same_request(draft.state, message)
    if duplicate_of is None:
        _check_method_applies(draft.state, message, leavers)
    erasure = Erasure(
        id=message.erasure_id,
        federation_id=message.federation_id,
        status="awaiting_approval" if message.needs_approval and duplicate_of is None else "received",
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
        fallback=message.fallback,
        audit=message.audit,
        duplicate_of=duplicate_of,
        callbacks=list(message.callbacks),
    )
    forgets_all = message.scope == "client" and duplicate_of is None
    subjects = tuple(Subject(erasure.id, c.id, c.name, active=forgets_all) for c in clients)
    draft.emit(e.ErasureFiled(erasure, subjects))
    if erasure.status == "received" and duplicate_of is None:
        begin(draft, erasure, ask_first=not message.is_tombstoned)
    return draft.state.erasures[erasure.id]


def approve_erasure(draft: Draft, message: m.ApproveErasure) -> Erasure:
    erasure = _open_request(draft.state, message, "awaiting_approval", "approved")
    draft.emit(e.ErasureMoved(erasure.id, "received"))
    begin(draft, erasure)
    return draft.state.erasures[erasure.id]


def deny_erasure(draft: Draft, message: m.DenyErasure) -> Erasure:
    erasure = _open_request(draft.state, message, "awaiting_approval", "denied")
    settle(draft, erasure, "denied", message.reason)
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
    if message.method == AUTO:
        return
    for option in planner.options(state, message, leavers):
        if option.name == message.method and option.why_not is not None:
            raise Rejected("method-unavailable", f"{option.name} does not apply: {option.why_not}; ask for auto")


Verdict = m.ApproveErasure | m.DenyErasure | m.CancelErasure | m.RetryErasure


def _open_request(state: State, message: Verdict, status: str, what: str) -> Erasure:
    erasure = state.erasures.get(message.erasure_id)
    if erasure is None:
        raise Rejected("not-found", f"there is no erasure request {message.erasure_id}")
    if message.expected_version not in (None, erasure.version):
        raise Rejected("precondition-failed", f"the request is at version {erasure.version}; read it again")
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
