"""Who the caller is, and what it may do."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Response

from coordinator.api.auth import ALLOWED, Action, Caller, Follower
from coordinator.api.bodies import JsonRoute, answer
from coordinator.api.problems import problems
from services.wire.v1.people import Me, Permission

router = APIRouter(prefix="/v1", tags=["credentials"], route_class=JsonRoute)
PERMISSIONS: Final[dict[Permission, Action]] = {
    "read": "read",
    "train": "run",
    "file": "erase",
    "approve": "judge",
    "administer": "administer",
}


@router.get("/me", response_model=Me, responses=problems("unauthenticated", "forbidden", "client-removed"))
async def get_me(caller: Follower) -> Response:
    """Whose credential this is. An erased client's says until when it can still read its own request."""
    return answer(me(caller))


def me(caller: Caller) -> Me:
    who = caller.principal
    return Me(
        credential_id=who.credential_id,
        role=who.role,
        label=who.label or None,
        federation_id=who.federation_id,
        client_id=who.client_id,
        client_name=who.client_name,
        person=who.person,
        session=who.is_session,
        expires_at=who.ends_at,
        can=[word for word, action in PERMISSIONS.items() if who.role in ALLOWED[action] and not who.is_erased],
    )
