"""Federated learning that can forget: the `lethe` command, and a client for Python.

from lethe import Client

client = Client("https://lethe.example.org", token_file="viewer.token")
run = client.runs.get("digits")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from lethe.client.asynchronous.client import AsyncClient
    from lethe.client.certificate import Certificate
    from lethe.client.synchronous.client import Client
    from lethe.errors import (
        AnswerUnreadable,
        Conflict,
        LetheError,
        NotAllowed,
        NotCompleted,
        NotFound,
        Refused,
        Unreachable,
        Unusable,
    )

__all__ = (
    "AnswerUnreadable",
    "AsyncClient",
    "Certificate",
    "Client",
    "Conflict",
    "LetheError",
    "NotAllowed",
    "NotCompleted",
    "NotFound",
    "Refused",
    "Unreachable",
    "Unusable",
)

_ELSEWHERE: Final = {
    "Client": "lethe.client.synchronous.client",
    "AsyncClient": "lethe.client.asynchronous.client",
    "Certificate": "lethe.client.certificate",
}


def __getattr__(name: str) -> Any:
    """Imported when they are asked for: `lethe --help` needs none of them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_ELSEWHERE.get(name, "lethe.errors")), name)
