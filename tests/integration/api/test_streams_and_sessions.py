"""Streams end with the session, or the credential, that they were opened with, and keep no session in use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from coordinator.store import tables as t
from tests.integration.api.site import Site, code_of, listening, until
from tests.integration.api.test_browser_sessions import SESSION, Browser, age

pytestmark = pytest.mark.anyio


class Listening:
    """A stream that somebody reads, from its beginning."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        self._url, self._headers = url, headers
        self.lines: list[str] = []
        self.reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async with (
            httpx.AsyncClient(timeout=30, trust_env=False) as http,
            http.stream("GET", self._url, headers=self._headers, params={"after": 0}) as response,
        ):
            assert response.status_code == 200, await response.aread()
            async for line in response.aiter_lines():
                self.lines.append(line)

    def has_told(self, event: str) -> bool:
        return f"event: {event}" in self.lines

    def has_begun(self, event: str) -> bool:
        """It has told this, or broke off."""
        return self.has_told(event) or self.reading.done()


class Scene:
    """A run that goes on and a request that waits for approval, and whoever follows both and their federation."""

    def __init__(self, site: Site, address: tuple[str, int], paths: dict[str, str]) -> None:
        self.site, self._address, self._paths = site, address, paths
        self._open: list[Listening] = []

    async def listen(self, headers: dict[str, str], *which: str) -> list[Listening]:
        host, port = self._address
        found = [
            Listening(f"http://{host}:{port}{path}", headers)
            for name, path in self._paths.items()
            if not which or name in which
        ]
        self._open += found
        for name, one in zip(which or self._paths, found, strict=True):
            first = {"federation": "RunCreated", "run": "RunCreated", "request": "ErasureFiled"}[name]
            await until(partial(one.has_begun, first))
        return found

    async def close(self) -> None:
        for one in self._open:
            one.reading.cancel()
        await asyncio.gather(*(one.reading for one in self._open), return_exceptions=True)


@asynccontextmanager
async def scene(site: Site) -> AsyncIterator[Scene]:
    await site.enrol("a", "b")
    run = await site.start_run()
    body = {"federation_id": site.federation_id, "subjects": ["b"], "needs_approval": True}
    request = await site.admin.post("/v1/erasure-requests", body, headers={"Idempotency-Key": "b"}, expect=202)
    paths = {
        "federation": f"/v1/federations/{site.federation_id}/events/stream",
        "run": f"/v1/runs/{run['id']}/events/stream",
        "request": f"/v1/erasure-requests/{request['id']}/events/stream",
    }
    async with listening(site) as address:
        found = Scene(site, address, paths)
        try:
            yield found
        finally:
            await found.close()


async def ended(streams: list[Listening]) -> None:
    async with asyncio.timeout(15):
        await asyncio.gather(*(one.reading for one in streams))


async def issued(site: Site) -> dict[str, Any]:
    path = f"/v1/federations/{site.federation_id}/credentials"
    return await site.admin.post(path, {"role": "compliance"})  # type: ignore[no-any-return]


async def signed_in(site: Site, token: str) -> tuple[Browser, dict[str, str]]:
    browser = Browser(site)
    assert (await browser.sign_in(token)).status_code == 201
    return browser, {"Cookie": f"lethe={browser.http.cookies['lethe']}"}


async def test_every_stream_ends_with_the_session_that_it_was_opened_with(site: Site) -> None:
    async with scene(site) as here:
        for end in ("signed out", "expired", "idled", "revoked"):
            officer = await issued(site)
            browser, cookie = await signed_in(site, officer["token"])
            streams = await here.listen(cookie)
            match end:
                case "signed out":
                    assert (await browser.call("DELETE", SESSION)).status_code == 204
                case "expired":
                    await age(site, created_at=timedelta(hours=13), ends_at=timedelta(hours=13))
                case "idled":
                    await age(site, seen_at=timedelta(hours=2))
                case _:
                    await site.admin.call("DELETE", f"/v1/credentials/{officer['id']}")
            await ended(streams)
            assert code_of(await site.http.get(SESSION, headers=cookie)) == "session-ended"
            await browser.http.aclose()


async def test_streams_of_others_go_on_when_a_session_ends(small_site: Site) -> None:
    """Also those that were opened with another session, or the token, of the same credential."""
    site = small_site
    async with scene(site) as here:
        officer = await issued(site)
        one, cookie = await signed_in(site, officer["token"])
        other, others_cookie = await signed_in(site, officer["token"])
        gone = await here.listen(cookie, "run")
        staying = await here.listen(others_cookie, "run")
        staying += await here.listen({"Authorization": f"Bearer {officer['token']}"}, "run")
        assert (await one.call("DELETE", SESSION)).status_code == 204
        await ended(gone)
        (run,) = (await site.admin.get("/v1/runs"))["items"]
        await site.admin.post(f"/v1/runs/{run['id']}/pause", expect=200)
        for stream in staying:
            await until(partial(stream.has_told, "RunPaused"))
        for browser in (one, other):
            await browser.http.aclose()


async def test_streams_end_with_a_token_that_was_rotated_or_a_client_that_was_removed(small_site: Site) -> None:
    site = small_site
    async with scene(site) as here:
        (c,) = await site.enrol("c")
        body = {"subjects": ["c"], "needs_approval": True}
        await c.post("/v1/erasure-requests", body, headers={"Idempotency-Key": "c"}, expect=202)
        (request,) = (await c.get("/v1/erasure-requests"))["items"]
        here._paths["request"] = f"/v1/erasure-requests/{request['id']}/events/stream"
        streams = await here.listen({"Authorization": f"Bearer {c.token}"}, "request")
        token = (await site.admin.post(f"/v1/clients/{c.client_id}/credentials"))["token"]
        await ended(streams)
        streams = await here.listen({"Authorization": f"Bearer {token}"}, "request")
        await site.admin.call("DELETE", f"/v1/clients/{c.client_id}")
        await ended(streams)


async def test_a_stream_that_is_open_does_not_keep_its_session_in_use(small_site: Site) -> None:
    site = small_site
    async with scene(site) as here:
        browser, cookie = await signed_in(site, (await issued(site))["token"])
        (stream,) = await here.listen(cookie, "federation")
        await age(site, seen_at=timedelta(minutes=30))
        (before,) = await _seen(site)
        (run,) = (await site.admin.get("/v1/runs"))["items"]
        await site.admin.post(f"/v1/runs/{run['id']}/pause", expect=200)
        await until(lambda: stream.has_told("RunPaused"))
        assert await _seen(site) == [before]
        assert (await browser.call("GET", SESSION)).status_code == 200
        (after,) = await _seen(site)
        assert after > before
        await browser.http.aclose()


async def _seen(site: Site) -> list[Any]:
    async with site.coordinator.database.read() as connection:
        return list((await connection.execute(sa.select(t.browser_sessions.c.seen_at))).scalars())
