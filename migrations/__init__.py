"""Alembic migrations, run on SQLite and Postgres by `lethe db upgrade`."""

from typing import Final

NEWEST: Final = "0001"
"""The revision that the code stands on."""
