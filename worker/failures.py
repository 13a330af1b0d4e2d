"""What the coordinator is told when work fails: whether trying again could help, a reason, and where it happened.

Messages of foreign exceptions may quote data ("could not convert string to float: 'Jane Doe'"), so they stay in the
agent's own log. What travels is the exception's type and the code lines of the traceback; only errors that Lethe words
itself travel with their text.
"""

from __future__ import annotations

import traceback
from typing import Final

from services.core.errors import InvariantBroken, Rejected
from services.wire.v1.work import Failure
from worker.answers import CoordinatorRefused

MAX_REASON: Final = 2000
MAX_LOG_TAIL: Final = 20_000

_MAY_HEAL: Final = (MemoryError, OSError, CoordinatorRefused)
_WILL_NOT_HEAL: Final = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)
_OUT_OF_MEMORY: Final = frozenset({"OutOfMemoryError", "AcceleratorError"})
"""torch's classes by name: nothing here may import torch."""


class WorkFailed(Exception):
    """Work that cannot succeed, told in words that quote no data."""


_OWN_WORDS: Final = (WorkFailed, Rejected, InvariantBroken, CoordinatorRefused)


def failure_of(error: BaseException, lease_token: str) -> Failure:
    return Failure(
        lease_token=lease_token,
        retryable=may_heal(error),
        reason=reason_of(error)[:MAX_REASON],
        log_tail=where(error)[-MAX_LOG_TAIL:],
    )


def may_heal(error: BaseException) -> bool:
    """Local work is deterministic: what the same model and data broke once they break again, except for resources."""
    if isinstance(error, _WILL_NOT_HEAL):
        return False
    return isinstance(error, _MAY_HEAL) or type(error).__name__ in _OUT_OF_MEMORY


def reason_of(error: BaseException) -> str:
    if isinstance(error, _OWN_WORDS):
        return str(error)
    return f"{_type_name(error)} in the client's task (its message stays in the agent's own log)"


def where(error: BaseException) -> str:
    """The traceback without any exception's message; causes first, as Python prints them."""
    parts: list[str] = []
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        parts.append("".join(traceback.format_tb(link.__traceback__)) + _type_name(link) + "\n")
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return "\nthen\n".join(reversed(parts))


def _type_name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
