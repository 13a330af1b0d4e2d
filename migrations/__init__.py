"""Alembic migrations, run on SQLite and Postgres by `lethe db upgrade`."""

from typing import Final

REVISIONS: Final = (
    "0001",
    "0002",
    "0003",
    "0004",
    "0005",
    "0006",
    "0007",
    "0008",
    "0009",
    "0010",
    "0011",
    "0012",
    "0013",
    "0014",
    "0015",
    "0016",
    "0017",
)
"""All revisions in their order. A released one is never edited: `frozen.sha256` has its digest."""
NEWEST: Final = REVISIONS[-1]
"""The revision that the code stands on."""
