"""Models that erasures have taken away and that a worker may still have in its cache, and its word that it has not."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import AwareDatetime, Field

from services.wire.message import Digest, Message, Reply

SUPERSEDED_HEADER: Final = "Lethe-Superseded"
"""On answers to sessions, claims and heartbeats: the newest fence that the worker has not said it followed."""

Fence = Annotated[AwareDatetime, Field(strict=False)]


class SupersededModels(Reply):
    """What this client's worker may have been given and must not keep."""

    through: Fence | None = Field(description="The newest fence that is included; null: nothing is superseded.")
    digests: list[Digest]


class ModelsDropped(Message):
    """The worker's cache holds none of the models that were named up to this fence."""

    through: Fence


class ModelsDroppedAccepted(Reply):
    through: Fence
