# Made from lethe/client/asynchronous/signin.py by scripts/make-synchronous: change that file.
"""Signing in as browsers do. Programs need none of it: they have tokens."""

from __future__ import annotations

from lethe.client.synchronous.connection import Connection
from lethe.client.views import Me, OpenIdInfo

_SESSION = "/v1/browser-session"
CSRF_COOKIE = "lethe-csrf"


class BrowserSession:
    """A session of this client, whose cookies are kept until it is closed. A client that has a token sends that."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def begin(self, token: str) -> Me:
        """Exchange a token for a session."""
        return Me.read(self._connection.request("POST", _SESSION, {"token": token}))

    def get(self) -> Me:
        """Who is signed in, and until when at the latest."""
        return Me.read(self._connection.request("GET", _SESSION))

    def end(self) -> None:
        """Sign out."""
        headers = {"X-CSRF-Token": self._connection.cookie(CSRF_COOKIE)}
        self._connection.request("DELETE", _SESSION, headers=headers)

    def openid(self) -> OpenIdInfo:
        """Whether people can sign in with OpenID Connect. Answers to anybody."""
        return OpenIdInfo.read(self._connection.request("GET", "/v1/openid"))
