"""Fixtures of every kind of test. Servers start when the first test asks for them, one set per test process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.servers import PostgresServer, RedisServer
from tests.support.transactions import watched


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def nothing_but_rows_in_a_transaction() -> Iterator[None]:
    with watched():
        yield


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    server = PostgresServer()
    try:
        server.start()
        yield server
    finally:
        server.dispose()


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    server = RedisServer()
    try:
        server.start()
        yield server
    finally:
        server.dispose()


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """A database of its own on a running server, also when an earlier test left the server stopped."""
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
