"""What only a real server and real sockets show: streams that arrive piece by piece, connections that break."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from tests.integration.api.site import Site, blob, listening, until, update

pytestmark = pytest.mark.anyio
DIGEST, DATA = blob(update(3.0))


def request(method: str, token: str, *headers: str) -> bytes:
    lines = [f"{method} /v1/blobs/{DIGEST} HTTP/1.1", "Host: x", f"Authorization: Bearer {token}", *headers, "", ""]
    return "\r\n".join(lines).encode()


async def test_a_connection_that_breaks_leaves_its_part(small_site: Site) -> None:
    (a,) = await small_site.holders("a")
    async with listening(small_site) as (host, port), asyncio.timeout(20):
        _, writer = await asyncio.open_connection(host, port)
        writer.write(request("PUT", a.token, f"Content-Length: {len(DATA)}") + DATA[:100])
        await writer.drain()
        await asyncio.sleep(0.1)
        writer.close()

        async def has_part() -> bool:
            head = await a.call("HEAD", f"/v1/blobs/{DIGEST}")
            return bool(head.headers.get("upload-offset") == "100")

        await until(has_part)


async def test_a_client_that_waits_for_100_continue_need_not_send_what_is_stored(small_site: Site) -> None:
    (a,) = await small_site.holders("a")
    async with listening(small_site) as (host, port), asyncio.timeout(20):
        for expected in (b"HTTP/1.1 100 Continue", b"HTTP/1.1 200 OK"):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(request("PUT", a.token, f"Content-Length: {len(DATA)}", "Expect: 100-continue"))
            assert (await reader.readline()).strip() == expected
            if b"100" in expected:
                writer.write(DATA)
                assert await reader.readuntil(b"HTTP/1.1 201 Created\r\n")
            writer.close()


async def test_events_arrive_while_the_run_goes_on(small_site: Site) -> None:
    await small_site.enrol("a")
    run = await small_site.start_run()
    path, headers = f"/v1/runs/{run['id']}", {"Authorization": f"Bearer {small_site.admin.token}"}
    async with (
        listening(small_site) as (host, port),
        asyncio.timeout(20),
        httpx.AsyncClient(base_url=f"http://{host}:{port}", headers=headers) as http,
        http.stream("GET", f"{path}/events") as stream,
    ):
        lines = stream.aiter_lines()
        async for line in lines:
            if line == "event: RoundOpened":
                break
        await small_site.admin.post(f"{path}/pause", expect=200)
        async for line in lines:
            if line.startswith("event: "):
                assert line == "event: RunPaused"
                break


async def test_a_poller_whose_connection_broke_is_given_nothing(small_site: Site) -> None:
    (a,) = await small_site.enrol("a")
    polls = small_site.app.state.context.metrics.waiting_polls._value
    async with listening(small_site) as (host, port), asyncio.timeout(20):
        _, writer = await asyncio.open_connection(host, port)
        text = f"POST /v1/tasks/claim HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {a.token}\r\nPrefer: wait=20\r\n\r\n"
        writer.write(text.encode())
        await until(lambda: polls.get() == 1)
        writer.close()
        await until(lambda: polls.get() == 0)
