"""Alembic migrations, run on SQLite and Postgres by `lethe db upgrade`."""

from typing import Final

NEWEST: Final = "0006"
"""The revision that the code stands on."""
