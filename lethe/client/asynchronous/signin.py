"""Signing in as browsers do. Programs need none of it: they have tokens."""

from __future__ import annotations

from lethe.client.asynchronous.connection import AsyncConnection
from lethe.client.views import Me, OpenIdInfo

_SESSION = "/v1/browser-session"
CSRF_COOKIE = "lethe-csrf"


class AsyncBrowserSession:
    """A session of this client, whose cookies are kept until it is closed. A client that has a token sends that."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def begin(self, token: str) -> Me:
        """Exchange a token for a session."""
        return Me.read(await self._connection.request("POST", _SESSION, {"token": token}))

    async def get(self) -> Me:
        """Who is signed in, and until when at the latest."""
        return Me.read(await self._connection.request("GET", _SESSION))

    async def end(self) -> None:
        """Sign out."""
        headers = {"X-CSRF-Token": self._connection.cookie(CSRF_COOKIE)}
        await self._connection.request("DELETE", _SESSION, headers=headers)

    async def openid(self) -> OpenIdInfo:
        """Whether people can sign in with OpenID Connect. Answers to anybody."""
        return OpenIdInfo.read(await self._connection.request("GET", "/v1/openid"))
