"""A worker that meets the coordinator's limits waits as it is told and goes on: real server, real links."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest
from safetensors.numpy import save

from services.core import digests
from tests.integration.api.site import listening, opened, until
from worker.answers import TryLater
from worker.backoff import Backoff
from worker.transport import Transport

pytestmark = pytest.mark.anyio
DATA = save({"x": np.arange(1_000_000, dtype=np.float32)})
TASK = UUID(int=1)
DIGEST = digests.of_bytes(DATA)


class Link:
    """A relay whose first connection takes so many bytes from its client, and then no more."""

    def __init__(self, host: str, port: int, first_bytes: int) -> None:
        self._to = host, port
        self._left = first_bytes
        self._num_connections = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._num_connections += 1
        most = self._left if self._num_connections == 1 else None
        far_reader, far_writer = await asyncio.open_connection(*self._to)
        there = asyncio.create_task(self._carry(reader, far_writer, most))
        await self._carry(far_reader, writer, None)
        there.cancel()
        far_writer.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, most: int | None) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536 if most is None else most):
                writer.write(data)
                await writer.drain()
                if most is not None and (most := most - len(data)) <= 0:
                    return
        writer.close()


@contextlib.asynccontextmanager
async def relayed(host: str, port: int, first_bytes: int) -> AsyncIterator[str]:
    relay = await asyncio.start_server(Link(host, port, first_bytes), "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{relay.sockets[0].getsockname()[1]}"
    finally:
        relay.close()


async def test_an_upload_that_stalled_goes_on_from_what_had_arrived(tmp_path: Path) -> None:
    (tmp_path / "update").write_bytes(DATA)
    retries: list[TryLater] = []
    async with (
        opened(tmp_path / "home", None, body_timeout_s=0.3) as site,
        listening(site) as (host, port),
        relayed(host, port, first_bytes=1_500_000) as url,
        asyncio.timeout(30),
    ):
        (a,) = await site.holders("a")
        bytes_in = site.app.state.context.metrics._bytes_in._value
        before = bytes_in.get()
        transport = Transport(url, a.token, backoff=Backoff(first_s=0.01), on_retry=lambda one, _: retries.append(one))
        await transport.upload(DIGEST, tmp_path / "update", UUID(a.task_id))
        await transport.aclose()
        assert (await a.call("HEAD", f"/v1/blobs/{DIGEST}")).status_code == 200
        received = bytes_in.get() - before
    assert [one.code for one in retries] in (["request-timeout"], ["unreachable"])
    assert received == len(DATA)  # nothing was sent twice


async def test_a_worker_that_has_too_many_uploads_waits_as_it_is_told_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "update").write_bytes(DATA)
    other = save({"x": np.zeros(10, dtype=np.float32)})
    async with (
        opened(tmp_path / "home", None, max_uploads_per_client=1) as site,
        listening(site) as (host, port),
        asyncio.timeout(30),
    ):
        (a,) = await site.holders("a")
        uploads = site.app.state.context.metrics.uploads._value
        _, holder = await asyncio.open_connection(host, port)
        path, size = f"/v1/blobs/{digests.of_bytes(other)}", len(other)
        head = f"PUT {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {a.token}\r\nContent-Length: {size}\r\n\r\n"
        holder.write(head.encode() + other[:1])
        await until(lambda: uploads.get() == 1)
        pauses: list[float] = []
        codes: list[str] = []

        async def pause(delay_s: float) -> None:
            pauses.append(delay_s)
            holder.close()
            await until(lambda: uploads.get() == 0)

        url = f"http://{host}:{port}"
        transport = Transport(url, a.token, sleep=pause, on_retry=lambda one, _: codes.append(one.code))
        await transport.upload(DIGEST, tmp_path / "update", UUID(a.task_id))
        await transport.aclose()
    assert codes == ["too-many-requests"]
    assert len(pauses) == 1 <= pauses[0]
