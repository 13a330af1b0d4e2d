"""Which coordinator the operator commands talk to, as whom: options before the subcommand, or LETHE_… variables."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from lethe.failures import UNUSABLE, CommandFailed

if TYPE_CHECKING:
    from lethe.client import Client

DEFAULT_URL: Final = "http://127.0.0.1:8440"
DEFAULT_TOKEN_FILE: Final = Path("lethe-data/admin.token")
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
        if self.token:
            return self.token
        file = self.token_file or (DEFAULT_TOKEN_FILE if DEFAULT_TOKEN_FILE.is_file() else None)
        if file is None:
            return None
        try:
            return file.read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise CommandFailed(f"cannot read the token file {file}: {error}", exit_code=UNUSABLE) from error


def connect(context: typer.Context) -> Client:
    """Waits for a coordinator of this machine that is just starting, and for the token that it writes."""
    from lethe.client import Client, await_listener, is_this_machine

    target = context.find_object(Target) or Target()
    await_listener(target.url, target.patience_s)
    token = target.read_token()
    if token is None and is_this_machine(target.url):
        with Client(target.url, None) as starting:
            starting.await_start()
        token = target.read_token()
    return Client(target.url, token)


def examples(*lines: str) -> dict[str, Any]:
    """Keyword arguments of a command whose help ends with these lines."""
    return {"epilog": "\n\n".join(("Examples:", *lines))}
