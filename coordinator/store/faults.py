"""The line between "the database cannot serve now" and "this message is at fault".

Postgres says which by its SQLSTATE (appendix A of its manual), SQLite by its result code. What is transient is tried
again with growing pauses; a statement that was cancelled or took too long only a few times, as it may be its own fault;
anything else fails the message that met it, and nothing beside it.
"""

from __future__ import annotations

import re
import sqlite3
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DBAPIError, InterfaceError


class Unavailable(Exception):
    """The database cannot be reached, or gave up on a transaction; nothing is known to have changed. Try again."""


class RolledBack(Unavailable):
    """The database took the transaction back because it stood in another's way, as in a deadlock. Try again at once."""


class TimedOut(Unavailable):
    """The database cancelled a statement, or did not answer it in time. Try again, but not for ever."""


ROLLBACK: Final = "40"
"""Transaction rollback: serialization failure, deadlock."""
TRANSIENT_CLASSES: Final = frozenset(
    {
        "08",  # connection exception
        ROLLBACK,
        "53",  # insufficient resources: disk, memory, connections
        "55",  # object not in prerequisite state: lock not available
        "57",  # operator intervention: shutdown, crash, cannot connect now
        "58",  # system error: input or output on the server
    }
)
READ_ONLY: Final = "25006"
CANCELLED: Final = "57014"
TRANSIENT_STATES: Final = frozenset({READ_ONLY, "25P03", "25P04"})
"""A read-only transaction (a failover); one that was idle or open for too long."""
TRANSIENT_RESULTS: Final = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PROTOCOL,
    }
)
_PRIMARY: Final = 0xFF
"""SQLite's extended result codes hold the primary one in their lowest byte."""
_REPEATS_VALUES: Final = "22"
"""Data exceptions: their messages name the value that was refused."""
_ARGUMENT: Final = re.compile(r"(invalid input for query argument \$\d+).*", re.DOTALL)


def fault_of(error: BaseException, *, is_open: bool = True) -> Unavailable | None:
    """What to raise instead of an exception when the database is at fault; None when the message is. `is_open`: whether
    there was a connection already. Then an OSError is not the database's, unless it says that a connection broke."""
    if isinstance(error, Unavailable):
        return error
    if isinstance(error, sa.exc.TimeoutError):
        return Unavailable("no free database connection")
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return Unavailable(str(error))
    if _is_confused(error):
        return Unavailable(str(error))
    state = sqlstate(error)
    if state == CANCELLED or (is_open and isinstance(error, TimeoutError)):
        return TimedOut(str(error) or "the database did not answer in time")
    if state is not None and state.startswith(ROLLBACK):
        return RolledBack(str(error))
    if state is not None:
        return Unavailable(str(error)) if is_transient(state) else None
    if (result := _sqlite_result(error)) is not None:
        if result == sqlite3.SQLITE_INTERRUPT:
            return TimedOut(str(error))
        return Unavailable(str(error)) if result in TRANSIENT_RESULTS else None
    if isinstance(error, DBAPIError):
        is_closed = isinstance(error, InterfaceError) and not _refuses_argument(error)
        return Unavailable(str(error)) if is_closed else None
    is_lost = isinstance(error, ConnectionError if is_open else OSError)
    return Unavailable(str(error) or type(error).__name__) if is_lost else None


def _is_confused(error: BaseException) -> bool:
    """Whether asyncpg no longer knows where in its protocol a connection is: one that broke in the middle of an
    operation. SQLAlchemy wraps what it says, except while it connects."""
    said = (error, getattr(error, "orig", None), error.__cause__)
    return any(type(one).__name__ == "InternalClientError" for one in said)


def is_transient(state: str) -> bool:
    return state in TRANSIENT_STATES or state[:2] in TRANSIENT_CLASSES


def sqlstate(error: BaseException) -> str | None:
    """The SQLSTATE of an error of Postgres, whether SQLAlchemy wrapped it or, while connecting, did not."""
    for one in (error, getattr(error, "orig", None), getattr(getattr(error, "orig", None), "__cause__", None)):
        state = getattr(one, "sqlstate", None)
        if isinstance(state, str):
            return state
    return None


def attend(engine: sa.Engine) -> None:
    """See to it that connections which are stuck read-only are not used again, and that errors repeat no values."""
    sa.event.listen(engine, "handle_error", _note)


def _note(context: ExceptionContext) -> None:
    original: Any = context.original_exception
    if getattr(original, "sqlstate", None) == READ_ONLY:
        context.is_disconnect = True  # after a failover each pooled connection may lead to the old server
    for one in (original.__cause__, original, context.sqlalchemy_exception):
        if one is not None:
            _silence(one, repeats_values=(getattr(original, "sqlstate", None) or "").startswith(_REPEATS_VALUES))


def _silence(error: Any, *, repeats_values: bool) -> None:
    """Leave out of an error's words the rows and arguments that it is about: they may be names and tokens."""
    if getattr(error, "detail", None):
        error.detail = None
    if error.args and isinstance(error.args[0], str):
        text = _ARGUMENT.sub(r"\1", error.args[0].split("\nDETAIL:")[0])
        if repeats_values:
            text = f"{text.split(':')[0]}: a value was refused"
        error.args = (text, *error.args[1:])


def _sqlite_result(error: BaseException) -> int | None:
    for one in (error, getattr(error, "orig", None)):
        code = getattr(one, "sqlite_errorcode", None)
        if isinstance(code, int):
            return code & _PRIMARY
    return None


def _refuses_argument(error: DBAPIError) -> bool:
    """Whether the driver found that a value does not fit its column, before it asked the server."""
    return isinstance(getattr(error.orig, "__cause__", None), ValueError)
