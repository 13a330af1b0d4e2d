"""What people do with requests to forget: approve, deny, cancel, retry, extend the deadline, write notes."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final
from uuid import UUID

from fastapi import APIRouter, Body, Request, Response

from coordinator.api.auth import Caller, Inspector, Judge
from coordinator.api.bodies import IfMatch, JsonRoute, WantedPage, answer, answer_page, expected_version
from coordinator.api.erasures import answer_request, view_of
from coordinator.api.problems import problems
from coordinator.engine.messages import ApproveErasure, CancelErasure, DenyErasure, ExtendErasure, RetryErasure
from coordinator.store import acts, erasures
from coordinator.store.acts import NOTED, SealedAct
from services.core.errors import Rejected
from services.wire.v1.acts import ActAbout, RecordedAct
from services.wire.v1.erasure import ErasureApproval, ErasureDenial, ErasureExtend, ErasureRequest, Note, NoteCreate
from services.wire.v1.people import Actor
from services.wire.v1.resources import Page

router = APIRouter(prefix="/v1/erasure-requests/{erasure_id}", tags=["erasure"], route_class=JsonRoute)
Judgement = ApproveErasure | DenyErasure | CancelErasure | RetryErasure | ExtendErasure
JUDGEMENTS: Final[dict[type[Judgement], str]] = {
    ApproveErasure: "erasure.approved",
    DenyErasure: "erasure.denied",
    CancelErasure: "erasure.cancelled",
    RetryErasure: "erasure.retried",
    ExtendErasure: "erasure.extended",
}
"""Decisions by the name that the log of acts has for them."""
_ALWAYS: Final = ("unauthenticated", "forbidden", "client-removed", "not-found")
_JUDGING: Final = (*_ALWAYS, "conflict", "precondition-failed")
_BODY: Final = ("too-large", "unsupported-media-type")


@router.post("/approve", response_model=ErasureRequest, responses=problems(*_JUDGING, *_BODY, "four-eyes"))
async def approve_erasure(
    erasure_id: UUID,
    caller: Judge,
    body: Annotated[ErasureApproval, Body(default_factory=ErasureApproval)],
    if_match: IfMatch = None,
) -> Response:
    """Carry out a request that awaits approval. Where its federation demands four eyes, somebody else than the filer
    has to."""
    version, made_by = expected_version(if_match), await caller.makers()
    return await _judge(caller, ApproveErasure(erasure_id, caller.party, made_by, body.reason, version))


@router.post("/deny", response_model=ErasureRequest, responses=problems(*_JUDGING, *_BODY, "four-eyes"))
async def deny_erasure(erasure_id: UUID, body: ErasureDenial, caller: Judge, if_match: IfMatch = None) -> Response:
    """Refuse a request that awaits approval, with the reason that the requester is told."""
    version, made_by = expected_version(if_match), await caller.makers()
    return await _judge(caller, DenyErasure(erasure_id, body.reason, caller.party, made_by, version))


@router.post("/cancel", response_model=ErasureRequest, responses=problems(*_JUDGING))
async def cancel_erasure(erasure_id: UUID, caller: Judge, if_match: IfMatch = None) -> Response:
    """Withdraw a request that awaits approval. After the fence there is no way back."""
    return await _judge(caller, CancelErasure(erasure_id, expected_version(if_match)))


@router.post("/retry", response_model=ErasureRequest, responses=problems(*_JUDGING))
async def retry_erasure(erasure_id: UUID, caller: Judge, if_match: IfMatch = None) -> Response:
    """Look again at a request that requires action, once what its reason names is mended."""
    return await _judge(caller, RetryErasure(erasure_id, expected_version(if_match)))


@router.post("/extend", response_model=ErasureRequest, responses=problems(*_JUDGING, *_BODY))
async def extend_erasure(erasure_id: UUID, body: ErasureExtend, caller: Judge, if_match: IfMatch = None) -> Response:
    """Move the legal deadline, once, with the reason that the requester is told."""
    version = expected_version(if_match)
    return await _judge(caller, ExtendErasure(erasure_id, body.until, body.reason, caller.party, version))


@router.get("/notes", response_model=Page[Note], responses=problems(*_ALWAYS))
async def list_notes(request: Request, erasure_id: UUID, caller: Inspector, position: WantedPage) -> Response:
    """What staff wrote about the request, oldest first. Notes are entries of the log of acts, and kept like these."""
    async with caller.database.read() as connection:
        await erasures.require(connection, erasure_id, view_of(caller))
        found = await acts.notes(connection, erasure_id, position)
    opened = await asyncio.to_thread(caller.coordinator.acts.opened, found.items)
    notes = [_note(act) for act in opened if any(part.says == "words" for part in act.entry.parts)]
    return answer_page(request, Page[Note](items=notes, next_cursor=found.next_cursor))


@router.post("/notes", status_code=201, response_model=Note, responses=problems(*_ALWAYS, *_BODY, "conflict"))
async def add_note(erasure_id: UUID, body: NoteCreate, caller: Judge) -> Response:
    """Write something about the request, for those who decide. It can be read by nobody once a client that the request
    is about was erased."""
    act = await _act(caller, NOTED, erasure_id, body.text)
    if any(part.says == "words" and part.sealed is None for part in act.parts):
        raise Rejected("conflict", "a client that it is about was erased: nothing is written about it any more")
    at, party = await caller.coordinator.acts.record(act), caller.party
    by = Actor(credential_id=party.credential_id, role=party.role, label=party.label, person=party.person)
    return answer(Note(id=act.id, at=at, by=by, text=body.text), 201)


def _note(act: RecordedAct) -> Note:
    said = {part.says: words.content for part, words in zip(act.entry.parts, act.opened, strict=True) if words}
    text, who = said.get("words", {}).get("text"), said.get("who")
    by = None
    if who is not None:
        label = None if act.entry.role == "client" else who["name"] or None
        by = Actor(credential_id=UUID(who["credential"]), role=act.entry.role, label=label, person=who.get("person"))
    return Note(id=act.entry.id, at=act.entry.at, by=by, text=text)


async def _judge(caller: Caller, message: Judgement) -> Response:
    words = None if isinstance(message, CancelErasure | RetryErasure) else message.reason
    act = await _act(caller, JUDGEMENTS[type(message)], message.erasure_id, words)
    await caller.shell.handle(message, act)
    return await answer_request(caller, message.erasure_id)


async def _act(caller: Caller, name: str, erasure_id: UUID, words: str | None) -> SealedAct:
    async with caller.database.read() as connection:
        await erasures.require(connection, erasure_id, view_of(caller))
        federation_id, whom = await erasures.concerned(connection, erasure_id)
    about = ActAbout(kind="request", id=erasure_id)
    return await caller.act(name, federation_id, about, whom=whom, words=words)
