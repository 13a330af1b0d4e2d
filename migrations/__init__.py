"""Alembic migrations, run on SQLite and Postgres by `lethe db upgrade`."""

from typing import Final

NEWEST: Final = "0004"
"""The revision that the code stands on."""
