"""Peers that are slow, silent, endless or many: each is ended, and the others do not notice."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from coordinator.api.server import Server
from services.core import digests
from tests.integration.api.site import Actor, Site, address_of, opened, serving, until

pytestmark = pytest.mark.anyio
SHORT_S = 0.3
HEAD = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
LARGE = save({"x": np.arange(3_000_000, dtype=np.float32)})
PATIENT = 30.0


@dataclass
class Peer:
    """One raw connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        status, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return int(status.split()[1]), headers, body

    async def problem(self) -> tuple[int, str]:
        status, headers, body = await self.answer()
        assert headers["content-type"] == "application/problem+json"
        assert headers["connection"] == "close"
        return status, json.loads(body)["code"]

    async def until_closed(self) -> bytes:
        """What still comes before the other side closes."""
        received = b""
        with contextlib.suppress(ConnectionError):
            while piece := await self.reader.read(65_536):
                received += piece
        return received

    async def keep_sending(self, piece: bytes, pause_s: float = 0.01) -> None:
        """Until the other side has closed."""
        with contextlib.suppress(ConnectionError):
            while not self.reader.at_eof():
                self.writer.write(piece)
                await self.writer.drain()
                await asyncio.sleep(pause_s)

    def close(self) -> None:
        self.writer.close()


def put(actor: Actor, data: bytes, *headers: str) -> bytes:
    lines = [
        f"PUT /v1/blobs/{digests.of_bytes(data)} HTTP/1.1",
        "Host: x",
        f"Authorization: Bearer {actor.token}",
        f"Content-Length: {len(data)}",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode()


def post(path: str, actor: Actor, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {actor.token}", *headers]
    return "\r\n".join([*lines, "", ""]).encode()


@dataclass
class House:
    """A site that listens, and those who connect to it."""

    site: Site
    server: Server
    peers: list[Peer]

    async def peer(self, sent: bytes = b"") -> Peer:
        peer = Peer(*await asyncio.open_connection(*address_of(self.server)))
        self.peers.append(peer)
        peer.writer.write(sent)
        return peer


@contextlib.asynccontextmanager
async def served(home: Path, **settings: Any) -> AsyncIterator[House]:
    async with opened(home, None, **settings) as site, serving(site) as server, asyncio.timeout(PATIENT):
        house = House(site, server, [])
        try:
            yield house
        finally:
            for peer in house.peers:
                peer.close()


# --- heads ------------------------------------------------------------------------------------------------------------

ENDLESS = {
    "address": (b"GET /", b"x" * 50_000),
    "header": (HEAD + b"X-Long: ", b"x" * 50_000),
    "headers": (HEAD, b"X-Many: 1\r\n" * 5000),
    "empty lines": (b"", b"\r\n" * 20_000),
    "chunk extensions": (
        b"POST /v1/sessions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5;a=",
        b"x" * 50_000,
    ),
    "trailers": (
        b"POST /v1/sessions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
        b"X-Many: 1\r\n" * 5000,
    ),
}


@pytest.mark.parametrize("kind", ENDLESS)
async def test_an_endless_header_ends_the_connection_and_nothing_else(tmp_path: Path, kind: str) -> None:
    first, more = ENDLESS[kind]
    async with served(tmp_path) as house:
        peer = await house.peer(first)
        await asyncio.gather(peer.keep_sending(more, 0), peer.until_closed())
        other = await house.peer(HEAD + b"\r\n")
        assert (await other.answer())[0] == 200


async def test_a_header_that_is_too_large_is_told_so(tmp_path: Path) -> None:
    async with served(tmp_path) as house:
        for header in (b"X-Long: " + b"x" * 40_000 + b"\r\n", b"X-Many: 1\r\n" * 101):
            peer = await house.peer(HEAD + header + b"\r\n")
            assert await peer.problem() == (431, "header-too-large")


async def test_what_is_not_http_is_told_so(tmp_path: Path) -> None:
    async with served(tmp_path) as house:
        peer = await house.peer(b"\x16\x03\x01 hello\r\n\r\n")
        assert await peer.problem() == (400, "malformed-request")


@pytest.mark.parametrize("sent", [b"", b"GET", HEAD], ids=["nothing", "a word", "half a head"])
async def test_a_half_open_request_is_closed(tmp_path: Path, sent: bytes) -> None:
    async with served(tmp_path, header_timeout_s=SHORT_S) as house:
        peer = await house.peer(sent)
        answer = await peer.until_closed()
        assert answer.startswith(b"HTTP/1.1 408 ") if sent else not answer
        await until(lambda: not house.server.server_state.connections)


@pytest.mark.parametrize("piece", [b"X-More: 1\r\n", b"\r\n"], ids=["headers", "empty lines"])
async def test_a_head_that_trickles_in_is_closed_as_well(tmp_path: Path, piece: bytes) -> None:
    async with served(tmp_path, header_timeout_s=SHORT_S) as house:
        peer = await house.peer(HEAD if piece.strip() else b"")
        await asyncio.gather(peer.keep_sending(piece, 0.02), peer.until_closed())


async def test_a_connection_on_which_nothing_more_is_asked_is_closed(tmp_path: Path) -> None:
    async with served(tmp_path, keep_alive_s=SHORT_S) as house:
        peer = await house.peer(HEAD + b"\r\n")
        assert (await peer.answer())[0] == 200
        await asyncio.gather(peer.keep_sending(b"\r\n", 0.02), peer.until_closed())


# --- bodies -----------------------------------------------------------------------------------------------------------


async def test_a_slow_json_body_is_ended_with_a_408(tmp_path: Path) -> None:
    async with served(tmp_path, body_timeout_s=SHORT_S) as house:
        site = house.site
        (a,) = await site.enrol("a")
        head = post("/v1/sessions", a, "Content-Type: application/json", "Content-Length: 1000")
        peer = await house.peer(head + b"{")
        sending = asyncio.create_task(peer.keep_sending(b" ", 0.02))
        status, headers, body = await peer.answer()
        assert (status, headers["retry-after"], json.loads(body)["code"]) == (408, "1", "request-timeout")
        assert json.loads(body)["instance"] == "/v1/sessions"
        await peer.until_closed()
        await sending


async def test_a_body_is_not_waited_for_from_somebody_unknown(tmp_path: Path) -> None:
    async with served(tmp_path) as house:
        stranger = Actor(house.site.http, "lethe_none")
        head = post("/v1/sessions", stranger, "Content-Type: application/json", "Content-Length: 100000")
        peer = await house.peer(head + b"{")
        assert (await peer.answer())[0] == 401


async def test_a_client_has_only_a_few_large_bodies_of_json_at_once(tmp_path: Path) -> None:
    async with served(tmp_path, max_uploads_per_client=2) as house:
        (a,) = await house.site.enrol("a")
        for length in ("Content-Length: 100000", "Transfer-Encoding: chunked"):
            head = post("/v1/sessions", a, "Content-Type: application/json", length)
            held = [await house.peer(head) for _ in range(2)]
            await until(lambda: len(house.server.server_state.tasks) == 2)
            assert (await (await house.peer(head)).answer())[0] == 429
            assert (await a.open_session())["client_name"] == "a"
            for peer in held:
                peer.close()
            await until(lambda: not house.server.server_state.tasks)


@pytest.mark.parametrize("num_floats", [100_000, 1_000_000], ids=["small", "large"])
async def test_a_slow_upload_is_ended_and_goes_on_from_where_it_was(tmp_path: Path, num_floats: int) -> None:
    data = save({"x": np.arange(num_floats, dtype=np.float32)})
    half = len(data) // 2
    async with served(tmp_path, body_timeout_s=SHORT_S) as house:
        site = house.site
        (a,) = await site.holders("a")
        peer = await house.peer(put(a, data) + data[:half])
        assert await peer.problem() == (408, "request-timeout")
        path, uploads = f"/v1/blobs/{digests.of_bytes(data)}", site.app.state.context.metrics.uploads
        await until(lambda: uploads._value.get() == 0)
        head = await a.call("HEAD", path)
        assert (head.status_code, head.headers["upload-offset"]) == (204, str(half))
        part = {"Content-Type": "application/partial-upload", "Upload-Offset": str(half)}
        rest = await a.call("PATCH", path, content=data[half:], headers={**part, "Upload-Length": str(len(data))})
        assert rest.status_code == 201


async def test_a_link_that_is_slow_but_steady_gets_its_upload_through(tmp_path: Path) -> None:
    data = save({"x": np.arange(1000, dtype=np.float32)})
    async with served(tmp_path, body_timeout_s=SHORT_S, min_body_rate=1) as house:
        site = house.site
        (a,) = await site.holders("a")
        peer = await house.peer(put(a, data))
        for start in range(0, len(data), 100):
            peer.writer.write(data[start : start + 100])
            await asyncio.sleep(0.02)
        assert (await peer.answer())[0] == 201


async def test_a_body_that_nobody_reads_does_not_hold_its_connection(tmp_path: Path) -> None:
    """The answer is out, and the rest of the body never comes."""
    async with served(tmp_path, body_timeout_s=SHORT_S) as house:
        site = house.site
        stranger = Actor(site.http, "lethe_none")
        peer = await house.peer(put(stranger, LARGE) + LARGE[:1000])
        assert (await peer.answer())[0] == 401
        await asyncio.gather(peer.keep_sending(b"x", 0.02), peer.until_closed())


async def test_a_peer_that_does_not_read_its_download_is_cut_off(tmp_path: Path) -> None:
    async with served(tmp_path, body_timeout_s=SHORT_S) as house:
        site = house.site
        (a,) = await site.holders("a")
        path = f"/v1/blobs/{digests.of_bytes(LARGE)}"
        assert (await a.call("PUT", path, content=LARGE)).status_code == 201
        peer = await house.peer(put(a, LARGE).replace(b"PUT ", b"GET ").replace(b"Content-Length", b"X-Length"))
        peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
        await until(lambda: bool(house.server.server_state.tasks))
        await until(lambda: not house.server.server_state.connections and not house.server.server_state.tasks)
        reader = await house.peer(put(a, LARGE).replace(b"PUT ", b"GET ").replace(b"Content-Length", b"X-Length"))
        assert (await reader.answer())[2] == LARGE


async def test_long_polls_and_streams_may_be_silent_for_longer_than_any_time_out(tmp_path: Path) -> None:
    short = {"header_timeout_s": 0.1, "body_timeout_s": 0.1, "keep_alive_s": 0.1}
    async with served(tmp_path, **short) as house:
        site = house.site
        (a,) = await site.enrol("a")
        run = await site.start_run()
        await a.claim()
        events = post(f"/v1/runs/{run['id']}/events", site.admin).replace(b"POST ", b"GET ")
        stream = await house.peer(events)
        await stream.reader.readuntil(b"event: RoundOpened")
        poll = await house.peer(post("/v1/tasks/claim", a, "Prefer: wait=1"))
        assert (await poll.answer())[0] == 204
        await site.admin.post(f"/v1/runs/{run['id']}/pause", expect=200)
        await stream.reader.readuntil(b"event: RunPaused")


# --- many -------------------------------------------------------------------------------------------------------------


async def test_slow_uploads_of_one_client_do_not_keep_others_from_uploading(tmp_path: Path) -> None:
    async with served(tmp_path, max_uploads_per_client=40) as house:
        site = house.site
        a, b = await site.holders("a", "b")
        uploads = site.app.state.context.metrics.uploads
        slow = [save({"x": np.full(300_000, number, dtype=np.float32)}) for number in range(40)]
        peers = [await house.peer(put(a, data) + data[:1]) for data in slow]
        await until(lambda: uploads._value.get() == len(peers))
        for data in (LARGE, slow[0]):
            assert (await b.call("PUT", f"/v1/blobs/{digests.of_bytes(data)}", content=data)).status_code == 201
        one_more = await a.call("PUT", f"/v1/blobs/{digests.of_bytes(LARGE)}", content=LARGE)
        assert (one_more.status_code, one_more.headers["retry-after"]) == (429, "1")
        for peer in peers:
            peer.close()
        await until(lambda: uploads._value.get() == 0)
        assert (await a.call("PUT", f"/v1/blobs/{digests.of_bytes(LARGE)}", content=LARGE)).status_code == 201


async def test_a_federation_with_too_many_uploads_still_takes_one_from_each_client(tmp_path: Path) -> None:
    async with served(tmp_path, max_uploads_per_federation=2) as house:
        site = house.site
        a, b = await site.holders("a", "b")
        (c,) = await site.holders("c", federation_id=await site.federation("neurology"))
        uploads = site.app.state.context.metrics.uploads
        slow = [save({"x": np.full(10, number, dtype=np.float32)}) for number in range(4)]
        peers = [await house.peer(put(a, data) + data[:1]) for data in slow[:2]]
        await until(lambda: uploads._value.get() == 2)
        path = f"/v1/blobs/{digests.of_bytes(slow[2])}"
        assert (await a.call("PUT", path, content=slow[2])).status_code == 429
        assert (await b.call("PUT", path, content=slow[2])).status_code == 201
        peers += [await house.peer(put(c, data) + data[:1]) for data in slow[:2]]
        await until(lambda: uploads._value.get() == 4)


async def test_requests_sent_ahead_are_answered_in_order(tmp_path: Path) -> None:
    async with served(tmp_path) as house:
        peer = await house.peer((HEAD + b"\r\n") * 3 + HEAD.replace(b"/healthz", b"/nowhere") + b"\r\n")
        assert [(await peer.answer())[0] for _ in range(4)] == [200, 200, 200, 404]


async def test_a_flood_of_requests_sent_ahead_ends_the_connection(tmp_path: Path) -> None:
    async with served(tmp_path) as house:
        site = house.site
        (a,) = await site.enrol("a")
        polls = site.app.state.context.metrics.waiting_polls._value
        peer = await house.peer(post("/v1/tasks/claim", a, "Prefer: wait=25"))
        await until(lambda: polls.get() == 1)
        await asyncio.gather(peer.keep_sending((HEAD + b"\r\n") * 500, 0), peer.until_closed())
        await until(lambda: polls.get() == 0)


async def test_a_poller_that_had_sent_more_ahead_is_noticed_when_it_goes(tmp_path: Path) -> None:
    async with served(tmp_path) as house:
        site = house.site
        (a,) = await site.enrol("a")
        polls = site.app.state.context.metrics.waiting_polls._value
        peer = await house.peer(post("/v1/tasks/claim", a, "Prefer: wait=25") * 2)
        await until(lambda: polls.get() == 1)
        peer.close()
        await until(lambda: polls.get() == 0)


async def test_connections_of_one_address_are_limited_but_not_those_of_a_proxy(tmp_path: Path) -> None:
    async with served(tmp_path / "direct", max_connections_per_peer=2) as house:
        held = [await house.peer() for _ in range(2)]
        await until(lambda: len(house.server.server_state.connections) == 2)
        assert await (await house.peer()).problem() == (429, "too-many-requests")
        held[0].close()
        await until(lambda: len(house.server.server_state.connections) == 1)
        peer = await house.peer(HEAD + b"\r\n")
        assert (await peer.answer())[0] == 200
    proxies = {"max_connections_per_peer": 1, "trusted_proxies": "10.0.0.1, 127.0.0.0/8"}
    async with served(tmp_path / "proxied", **proxies) as house:
        peers = [await house.peer(HEAD + b"\r\n") for _ in range(3)]
        assert [(await peer.answer())[0] for peer in peers] == [200] * 3
