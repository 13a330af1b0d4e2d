"""What a database's refusal means for whoever starts a process: the fault in a sentence, and the next step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from lethe.failures import CommandFailed

NEXT_STEPS: Final = {
    "28P01": "correct user and password in LETHE_DATABASE_URL",
    "28000": "correct the user in LETHE_DATABASE_URL, or let it in (pg_hba.conf)",
    "3D000": "create it, like `createdb lethe`, or correct LETHE_DATABASE_URL",
    "42501": "grant the user its rights on the database, or connect as its owner",
}
"""What to tell the operator, by SQLSTATE."""
CHECK: Final = "check that it runs, and --database-url or LETHE_DATABASE_URL"


@contextmanager
def database_asked(*, may_be_away: bool = False) -> Iterator[None]:
    """A context for the first use of the database. `may_be_away`: the caller waits for one that cannot be reached."""
    import asyncpg  # type: ignore[import-untyped]
    from sqlalchemy.exc import SQLAlchemyError

    from coordinator.store.database import Unavailable

    try:
        yield
    except Unavailable as error:
        if may_be_away:
            raise
        raise CommandFailed(f"the database cannot be reached: {_said(error)}", next_step=CHECK) from error
    except (SQLAlchemyError, asyncpg.PostgresError, asyncpg.InterfaceError, ValueError, TypeError) as error:
        state = getattr(getattr(error, "orig", error), "sqlstate", None)
        raise CommandFailed(
            f"the database cannot be used: {_said(error)}", next_step=NEXT_STEPS.get(str(state), CHECK)
        ) from error


def _said(error: Exception) -> str:
    """The first line: what follows it is the statement and a link."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
