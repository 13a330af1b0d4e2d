"""Who asks, files and decides: the caller itself, and actors as requests to forget name them."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from services.wire.message import Id, Message

FourEyes = Literal["off", "asked", "all"]
Permission = Literal["read", "train", "file", "approve", "administer"]


class Actor(Message):
    """Whoever filed, decided or wrote something, as it was named then."""

    credential_id: Id
    role: str
    label: str | None = Field(default=None, description="Of the credential; null for a client's own.")
    person: str | None = Field(default=None, description="Who signed in with OpenID Connect.")


class Me(Message):
    """Whose credential this is, and what it may do."""

    credential_id: Id
    role: str
    label: str | None
    federation_id: Id | None = Field(description="Null: every federation.")
    client_id: Id | None
    client_name: str | None
    person: str | None = Field(description="Who signed in with OpenID Connect.")
    session: bool = Field(description="Whether a browser's session asks, and not a token.")
    expires_at: datetime | None
    can: list[Permission] = Field(
        description="`read` everything in the federation, `train` (enrol clients, create runs), `file` requests to "
        "forget, `approve` them, `administer` federations and credentials."
    )
