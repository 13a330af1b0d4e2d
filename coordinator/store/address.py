"""The database's address, as operators write it: `postgresql://…` or `sqlite:///…`.

`postgres://`, `postgresql://` and `postgresql+asyncpg://` mean the same, and libpq's `sslmode` is what asyncpg calls
`ssl`. Messages never repeat the address: it may hold a password.
"""

from __future__ import annotations

import inspect
from typing import Final

import sqlalchemy as sa

FORMS: Final = "write postgresql://USER:PASSWORD@HOST/DATABASE or sqlite:///FILE"
_OF_SQLALCHEMY: Final = {"prepared_statement_cache_size", "prepared_statement_name_func"}


class AddressUnusable(Exception):
    """The address names no database that Lethe can use; the message says why."""


def parse_address(text: str) -> sa.URL:
    try:
        url = sa.make_url(text)
    except (sa.exc.ArgumentError, ValueError):
        raise AddressUnusable(f"it is not an address: {FORMS}") from None
    backend, _, driver = url.drivername.partition("+")
    if backend == "sqlite":
        return url
    if backend not in ("postgresql", "postgres"):
        raise AddressUnusable(f"{backend} is not supported: {FORMS}")
    if driver not in ("", "asyncpg"):
        raise AddressUnusable(f"the driver {driver} is not used here: leave out +{driver}")
    return _with_known_parameters(url.set(drivername="postgresql+asyncpg"))


def _with_known_parameters(url: sa.URL) -> sa.URL:
    import asyncpg  # type: ignore[import-untyped]

    query = {("ssl" if name == "sslmode" else name): value for name, value in url.query.items()}
    known = inspect.signature(asyncpg.connect).parameters.keys() | _OF_SQLALCHEMY
    if unknown := sorted(query.keys() - known):
        raise AddressUnusable(f"the parameter {unknown[0]} is not known: asyncpg takes ssl (or sslmode) and others")
    return url.set(query=query)
