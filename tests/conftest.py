"""Fixtures of every kind of test. Servers start when the first test asks for them, one set per test process."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import hypothesis
import pytest
import structlog

from tests.support import compiled
from tests.support.servers import PostgresServer, RedisServer
from tests.support.transactions import watched

hypothesis.settings.register_profile("without a clock", deadline=None)
hypothesis.settings.load_profile("without a clock")

TESTS: Final = Path(__file__).parent
LONGEST_FIRST: Final = {name: place for place, name in enumerate(("e2e", "chaos", "property", "integration"))}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--without-servers", action="store_true", help="skip what needs Postgres or Redis")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first: whoever is left with one at the end keeps the others waiting."""
    items.sort(key=lambda item: LONGEST_FIRST.get(item.path.relative_to(TESTS).parts[0], len(LONGEST_FIRST)))


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: it need not be looked through again and again for garbage."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def servers_wanted(pytestconfig: pytest.Config) -> None:
    if pytestconfig.getoption("--without-servers"):
        pytest.skip("it needs Postgres or Redis")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def plain_tracebacks() -> None:
    """By default structlog writes every local variable of a traceback, which takes seconds."""
    structlog.dev.ConsoleRenderer.get_active().exception_formatter = structlog.dev.plain_traceback


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Whoever captures logs leaves structlog configured, and a simulation then takes that for the caller's wish."""
    yield
    if structlog.is_configured():
        structlog.reset_defaults()


@pytest.fixture(scope="session", autouse=True)
def statements_compiled_once() -> Iterator[None]:
    with compiled.once():
        yield


@pytest.fixture(scope="session", autouse=True)
def nothing_but_rows_in_a_transaction() -> Iterator[None]:
    with watched():
        yield


@pytest.fixture(scope="session")
def postgres_server(servers_wanted: None) -> Iterator[PostgresServer]:
    server = PostgresServer()
    try:
        server.start()
        yield server
    finally:
        server.dispose()


@pytest.fixture(scope="session")
def redis_server(servers_wanted: None) -> Iterator[RedisServer]:
    server = RedisServer()
    try:
        server.start()
        yield server
    finally:
        server.dispose()


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """A database of its own with the newest schema, on a running server, also when an earlier test left it stopped."""
    url = postgres_server.new_migrated_database()
    yield url
    postgres_server.start()
    postgres_server.drop_database(url)


@pytest.fixture
def empty_postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """Like `postgres_url`, without any table."""
    url = postgres_server.new_database()
    yield url
    postgres_server.start()
    postgres_server.drop_database(url)


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """A running, empty server."""
    redis_server.start()
    redis_server.flush()
    return redis_server.url
