"""Signing in with a browser, and handing a certificate over to somebody who has no credential."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field, SecretStr

from services.wire.message import Id, Message


class BrowserSessionCreate(Message):
    token: Annotated[SecretStr, Field(min_length=1, max_length=300, description="A client's token, or one of staff.")]


class OpenIdInfo(Message):
    """Whether people can sign in with OpenID Connect here; `/v1/openid/start` is where that begins."""

    enabled: bool
    name: str | None = Field(default=None, description="What the installation calls its provider.")


class HandOver(Message):
    """A link for whoever a certificate is to be handed to. What it opens is handed over once."""

    id: Id
    erasure_id: Id
    created_at: datetime
    expires_at: datetime
    opened_at: datetime | None = None
    revoked_at: datetime | None = None


class IssuedHandOver(HandOver):
    """The only answer that ever contains the secret; the coordinator keeps its hash."""

    url: str = Field(description="The secret is behind the `#`, which browsers send to nobody.")
    secret_shown_once: str


class HandOverOpen(Message):
    secret: Annotated[SecretStr, Field(min_length=1, max_length=300)]


class HandedOver(Message):
    """What is handed over: each text is a file, to be kept byte for byte."""

    request_id: Id
    certificate: str = Field(description="The DSSE envelope, as it was signed.")
    page: str = Field(description="The same certificate for people: one HTML file that verifies itself.")
    artefacts: str | None = Field(description="The list that the certificate commits to; null if it is not kept here.")
    opening: str | None = Field(
        description="What shows whom the certificate is about; null if it names several clients, or is not kept here."
    )
    public_key: str = Field(description="The keys that it is verified with, as PEM; compare them with another source.")
