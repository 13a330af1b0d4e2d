"""How a command fails: what went wrong, what to do next, and the exit code."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

REFUSED: Final = 1
"""The coordinator refused, cannot be reached, or the work failed."""
UNUSABLE: Final = 2
"""What the user gave (options, files) cannot be used; nothing was sent."""
INCOMPLETE: Final = 3
"""What was checked holds; something that belongs to it is not at hand."""


class CommandFailed(Exception):
    """Ends the command. `main` prints the message and the next step on standard error."""

    def __init__(self, message: str, *, next_step: str | None = None, exit_code: int = REFUSED) -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step
        self.exit_code = exit_code


def require(extra: str, *packages: str) -> None:
    """Call it before a role's imports: a host without the role is told how to install it. Imports nothing itself."""
    for package in packages:
        if find_spec(package) is None:
            raise CommandFailed(
                f"this command needs the package {package}, which is not installed here",
                next_step=how_to_install(extra),
                exit_code=UNUSABLE,
            )


def how_to_install(extra: str) -> str:
    """The command that installs a role; never by name from an index: on PyPI another project is called lethe."""
    return f"pip install '.[{extra}]' in a clone of Lethe, or 'FILE.whl[{extra}]' with its wheel"
