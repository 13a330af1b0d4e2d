"""How a command fails: what went wrong, what to do next, and the exit code."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Final

from lethe.errors import LetheError, NotFound, Refused, Unusable

REFUSED: Final = 1
"""The coordinator refused, cannot be reached, or the work failed."""
UNUSABLE: Final = 2
"""What the user gave (options, files) cannot be used; nothing was sent."""
INCOMPLETE: Final = 3
"""What was checked holds; something that belongs to it is not at hand."""


NEXT_STEPS: Final[Mapping[str, str]] = {
    "unauthenticated": "give a token before the command's name: lethe --token-file FILE …, or LETHE_TOKEN",
    "forbidden": "ask an admin for a credential with such a role: lethe credentials create --role ROLE",
    "not-found": "list what there is: lethe federations list, lethe clients list, lethe runs list, lethe erase list",
    "name-taken": "choose another name, or list what there is",
    "idempotency-key-reused": "leave out --idempotency-key, or send the same file again",
    "precondition-failed": "look at it again and repeat the command",
    "certificate-not-ready": "follow the request until it is completed: lethe erase watch ID",
    "superseded": "use the cohort's head: lethe checkpoints list RUN",
    "already-erased": "show its certificate: lethe certificates show CLIENT",
    "four-eyes": "who has to decide it sees it with: lethe erase list --awaiting-me",
    "already-spent": "make another link: lethe certificates hand-over ID",
    "method-unavailable": "see which methods apply here, and why others do not: lethe erase preview --client NAME",
    "invalid-run": "look at the keys of a run file in docs/run-file.md, and try with: lethe runs create FILE --dry-run",
}
"""What a command advises when the coordinator refuses with a code."""

LISTS: Final[Mapping[str, str]] = {
    "first federation": "make one: lethe federations create NAME",
    "federation": "list what there is: lethe federations list",
    "run": "list what there is: lethe runs list",
    "client": "list what there is: lethe clients list",
    "served model": "follow the run until it has one: lethe runs watch RUN",
}
"""What it advises when it finds nothing of a kind under a name."""


class CommandFailed(LetheError):
    """Ends the command. `main` prints the message and the next step on standard error."""

    def __init__(self, message: str, *, next_step: str | None = None, exit_code: int = REFUSED) -> None:
        super().__init__(message, next_step=next_step)
        self.exit_code = exit_code

    @classmethod
    def of(cls, error: LetheError) -> CommandFailed:
        """A failure of the client, with the step that a command can take."""
        if isinstance(error, CommandFailed):
            return error
        step = error.next_step
        if isinstance(error, NotFound) and error.kind is not None:
            step = LISTS[error.kind]
        elif isinstance(error, Refused):
            step = NEXT_STEPS.get(error.code, step)
        return cls(error.message, next_step=step, exit_code=UNUSABLE if isinstance(error, Unusable) else REFUSED)


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
