"""The log of acts: who did what, when and from where, in a chain that nobody can edit.

An entry has no names in it, only commitments to them. What they commit to comes beside the entry, for as long as its
owner has not been erased.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from services.wire.message import Digest, Id, Message
from services.wire.v1.resources import Role

Says = Literal["who", "whom", "words"]
Commitment = Annotated[str, Field(pattern=r"^hmac-sha256:[0-9a-f]{64}$")]
ActName = Annotated[str, Field(pattern=r"^[a-z]+(\.[a-z-]+)+$", max_length=40, examples=["erasure.approved"])]


class ActAbout(Message):
    kind: Literal["run", "request", "credential"]
    id: Id


class ActPart(Message):
    """who: as whom somebody acted, and from where. whom: a client that it is about. words: what was written with it."""

    says: Says
    commitment: Commitment


class ActGap(Message):
    """Entries that were lost with the database that this one replaced; their digests were signed before."""

    first: int
    last: int
    before: Digest = Field(description="Of the last entry before the gap.")
    after: Digest = Field(description="Of the last entry that was lost.")


class ActEntry(Message):
    federation: Id
    seq: Annotated[int, Field(ge=1)]
    id: Id
    at: datetime
    act: ActName
    role: Role | Literal["client", "coordinator"] = Field(description="As what whoever did it was known.")
    about: ActAbout | None = None
    parts: list[ActPart]
    gap: ActGap | None = None


class ActWords(Message):
    """What a part commits to: HMAC-SHA256 of `content` as canonical JSON, under `salt`."""

    salt: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    content: dict[str, str]


class RecordedAct(Message):
    entry: ActEntry
    opened: list[ActWords | None] = Field(
        description="One for each part of the entry. Null: nobody can read it any more, because its owner was erased."
    )


class ActsHead(Message):
    """What is signed: that the log has these entries and no others. Those before `kept_from` were pruned."""

    federation: Id
    at: datetime
    kept_from: Annotated[int, Field(ge=1)]
    before: Digest = Field(description="Of the last entry that was pruned, or with which the chain begins.")
    seq: Annotated[int, Field(ge=0)] = Field(description="Of the last entry.")
    digest: Digest = Field(description="Of the last entry.")
