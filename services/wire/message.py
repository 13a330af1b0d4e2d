"""The parent of every wire message: frozen, strict (no silent coercion), unknown keys refused."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from services.core.digests import PATTERN


class Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Reply(Message):
    """What a coordinator answers to a worker: unknown keys are ignored, so that older agents read newer replies."""

    model_config = ConfigDict(extra="ignore")


Digest = Annotated[str, Field(pattern=PATTERN, examples=["sha256:" + "0" * 64])]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$", examples=["hospital-a"])]
Id = Annotated[UUID, Field(strict=False)]
