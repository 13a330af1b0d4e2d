"""The same tests on SQLite and on Postgres."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.api.site import Site, opened


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str | None:
    return request.getfixturevalue("postgres_url") if request.param == "postgres" else None


@pytest.fixture
async def site(tmp_path: Path, database_url: str | None) -> AsyncIterator[Site]:
    async with opened(tmp_path / "home", database_url) as site:
        yield site


@pytest.fixture
async def small_site(tmp_path: Path) -> AsyncIterator[Site]:
    """SQLite only: for what the database has no part in."""
    async with opened(tmp_path / "home", None) as site:
        yield site
