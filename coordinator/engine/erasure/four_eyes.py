"""Four eyes: somebody else than who filed a request decides it, where its federation demands that.

Somebody else is, if both signed in with OpenID Connect, another person; otherwise another credential, which the filer's
did not create or rotate, nor one that it made. Whoever is asked to decide says from which credentials its own descends.
"""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from coordinator.engine.entities import Erasure, Eyes, Party
from services.core.errors import Rejected


def eyes_of(filer: Party | None, decider: Party, made_by: Collection[UUID]) -> Eyes | None:
    """What tells the two apart; None: they may be one person, or nobody knows who filed."""
    if filer is None:
        return None
    if filer.subject is not None and decider.subject is not None:
        return "two persons" if filer.subject != decider.subject else None
    is_own = filer.credential_id == decider.credential_id or filer.credential_id in made_by
    return None if is_own else "two credentials"


def may_decide(filer: Party | None, decider: Party, made_by: Collection[UUID]) -> bool:
    """Whether a request that asks for four eyes may be decided by this one."""
    return filer is None or eyes_of(filer, decider, made_by) is not None


def check(erasure: Erasure, decider: Party, made_by: Collection[UUID]) -> None:
    if erasure.four_eyes and not may_decide(erasure.filed_by, decider, made_by):
        raise Rejected(
            "four-eyes",
            "the request was filed by you, or with a credential that yours descends from; somebody else with the role "
            "compliance or admin has to decide it",
        )
