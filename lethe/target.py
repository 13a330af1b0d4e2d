"""Which coordinator the operator commands talk to, as whom: options before the subcommand, or LETHE_… variables."""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import urlsplit

import typer

from lethe.client.target import DEFAULT_URL, token_here
from lethe.errors import AnswerUnreadable, Refused

if TYPE_CHECKING:
    from lethe.client.synchronous.client import Client

PATIENCE_S: Final = 30.0
"""How long a command waits for a coordinator on this machine that is just starting."""

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON (lists: one object per line).")]


@dataclass(frozen=True)
class Target:
    url: str = DEFAULT_URL
    token: str | None = field(default=None, repr=False)
    token_file: Path | None = None
    patience_s: float = PATIENCE_S

    def read_token(self) -> str | None:
        """The token given, else the one in the file given, else that of a `lethe serve` in this directory."""
        return self.token or token_here(self.token_file, {})


def connect(context: typer.Context) -> Client:
    """Waits for a coordinator of this machine that is just starting, and for the token that it writes."""
    from lethe.client.http import is_this_machine
    from lethe.client.synchronous.client import Client

    target = context.find_object(Target) or Target()
    await_listener(target.url, target.patience_s)
    token = target.read_token()
    if token is None and is_this_machine(target.url):
        with Client(target.url) as starting, contextlib.suppress(Refused, AnswerUnreadable):  # any answer will do
            starting.health()
        token = target.read_token()
    return Client(target.url, token)


def await_listener(url: str, patience_s: float) -> None:
    """Wait until something listens there, or patience is over: `lethe serve &` takes seconds to begin. From then on
    requests wait by themselves. Only this machine is waited for."""
    from lethe.client.http import is_this_machine

    try:
        parts = urlsplit(url)
        address = (parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))
    except ValueError:  # no address: the client says so
        return
    if not is_this_machine(url):
        return
    until, has_said = time.monotonic() + patience_s, False
    while True:
        try:
            socket.create_connection(address, timeout=5.0).close()
            return
        except OSError:
            if time.monotonic() >= until:
                return
        if not has_said:
            print(f"waiting up to {patience_s:g} s for the coordinator at {url}", file=sys.stderr, flush=True)
            has_said = True
        time.sleep(0.1)


def examples(*lines: str) -> dict[str, Any]:
    """Keyword arguments of a command whose help ends with these lines."""
    return {"epilog": "\n\n".join(("Examples:", *lines))}
