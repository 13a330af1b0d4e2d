"""What can go wrong between a program and a coordinator, as exceptions.

LetheError
├── Refused              the coordinator said no: `code`, `status`, `problem`
│   ├── NotAllowed       401, 403: nobody known, or somebody who may not
│   ├── NotFound         404
│   └── Conflict         409, 412: it is not in the state for that, or has changed meanwhile
├── Unreachable          nobody answers there
├── AnswerUnreadable     the answer is none that this release understands
├── Unusable             what the caller gave cannot be used; nothing was sent
└── NotCompleted         a run or a request that was waited for ended otherwise
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Self
from urllib.parse import urljoin


class LetheError(Exception):
    """`message` says what is wrong, `next_step` what to do about it."""

    def __init__(self, message: str, *, next_step: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step


class Refused(LetheError):
    """The coordinator's problem document (RFC 9457). `code` is stable: `/v1/problems/{code}` describes it."""

    def __init__(self, url: str, status: int, problem: Mapping[str, Any]) -> None:
        self.status = status
        self.problem = dict(problem)
        self.code = str(problem.get("code", "unknown"))
        self.retryable = bool(problem.get("retryable"))
        lines = [f"{problem.get('title') or 'refused'} ({self.code}, HTTP {status})"]
        faults = [
            f"{'.'.join(map(str, fault.get('loc', ())))}: {fault.get('msg')}" for fault in problem.get("errors") or []
        ]
        lines += [f"       {text}" for text in faults or [str(problem.get("detail") or "")] if text]
        next_step = "try again in a moment" if self.retryable else None
        if next_step is None and problem.get("type"):
            next_step = f"read {urljoin(url, problem['type'])}"
        super().__init__("\n".join(lines), next_step=next_step)

    @classmethod
    def by_status(cls, url: str, status: int, problem: Mapping[str, Any]) -> Refused:
        return _BY_STATUS.get(status, Refused)(url, status, problem)

    def __reduce__(self) -> tuple[type[Self], tuple[Any, ...]]:
        return type(self), ("", self.status, self.problem)


class NotAllowed(Refused):
    """Nobody whom the coordinator knows, or somebody who may not do that."""


class NotFound(Refused):
    """There is no such thing, or not for this caller. `kind`: what was looked for in a list, as `run`."""

    kind: str | None = None

    @classmethod
    def by_name(cls, message: str, kind: str, *, next_step: str | None = None) -> NotFound:
        """The error for a name that is not in a list."""
        error = cls("", 404, {"code": "not-found", "title": message})
        error.message, error.args, error.kind, error.next_step = message, (message,), kind, next_step
        return error


class Conflict(Refused):
    """It is not in the state for that, or has changed since it was looked at."""


_BY_STATUS: Final[Mapping[int, type[Refused]]] = {
    401: NotAllowed,
    403: NotAllowed,
    404: NotFound,
    409: Conflict,
    412: Conflict,
}


class Unreachable(LetheError):
    """Nobody answers there."""

    def __init__(self, url: str, error: Exception) -> None:
        super().__init__(
            f"no coordinator answers at {url} ({error or type(error).__name__})",
            next_step="start one with `lethe serve`, or name another: lethe --url URL … (or LETHE_URL)",
        )


class AnswerUnreadable(LetheError):
    """The answer is none that this release understands."""


class Unusable(LetheError):
    """What the caller gave cannot be used; nothing was changed."""


class NotCompleted(LetheError):
    """What was waited for ended in another way; `status` says in which."""

    def __init__(self, message: str, status: str, *, next_step: str | None = None) -> None:
        super().__init__(message, next_step=next_step)
        self.status = status
