"""The bare reference: a federated round over FastAPI with nothing else. Not durable, no database, no credentials, no
checks: bodies are raw float32 held in memory. Its rounds are those of the coordinator's benchmark: each client waits
for a round, gets the model, puts its update; when all have, the mean is added to the model and the next round opens.

With `--durable` it answers an update when it would survive the power: hashed, found finite, sealed, written and synced,
those that come together in one go, and noted by a commit of SQLite; and opens a round when the same is true of its
model. That is the least that durability and sealing cost, without tasks, leases, lineage or erasure.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import sqlite3
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import uvicorn
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from fastapi import FastAPI, Request, Response

from coordinator.blobs.disk import Batches

Floats = npt.NDArray[np.float32]


class DurableStore:
    def __init__(self, home: Path) -> None:
        self._home, self._key, self._num_stored = home, AESGCM(os.urandom(32)), 0
        self._directory = os.open(home, os.O_RDONLY)
        self._rows = sqlite3.connect(home / "rows.sqlite", isolation_level=None, check_same_thread=False)
        self._rows.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; CREATE TABLE stored (digest TEXT);")
        self.batches: Batches[Floats, None] = Batches(asyncio.to_thread, self._store)

    def _store(self, lot: Sequence[Floats]) -> list[None]:
        files, digests = list[int](), list[tuple[str]]()
        for values in lot:
            if not np.isfinite(values).all():
                raise ValueError("not finite")
            content, nonce = values.tobytes(), os.urandom(12)
            digests.append((hashlib.sha256(content).hexdigest(),))
            self._num_stored += 1
            files.append(os.open(self._home / str(self._num_stored), os.O_CREAT | os.O_WRONLY))
            os.write(files[-1], nonce + self._key.encrypt(nonce, content, None))
        for file in (*files, self._directory):
            os.fsync(file)
        for file in files:
            os.close(file)
        self._rows.execute("BEGIN IMMEDIATE")
        self._rows.executemany("INSERT INTO stored VALUES (?)", digests)
        self._rows.execute("COMMIT")
        return [None] * len(lot)


class Federation:
    def __init__(self, num_clients: int, model: Floats, store: DurableStore | None) -> None:
        self.num_clients, self.model, self.served = num_clients, model, model.tobytes()
        self.store = store
        self.round = 1
        self.updates: dict[int, Floats] = {}
        self.published_at = [time.time()]
        self.opened = asyncio.Condition()

    async def wait_for(self, number: int) -> None:
        async with self.opened:
            await self.opened.wait_for(lambda: self.round >= number)

    async def take(self, client: int, update: Floats) -> None:
        await self._make_durable(update)
        self.updates[client] = update
        if len(self.updates) == self.num_clients:
            self.model = self.model + self._mean()
            await self._make_durable(self.model)
            self.served = self.model.tobytes()
            self.updates.clear()
            self.published_at.append(time.time())
            async with self.opened:
                self.round += 1
                self.opened.notify_all()

    async def _make_durable(self, values: Floats) -> None:
        if self.store is not None:
            await self.store.batches.add(values)

    def _mean(self) -> Floats:
        total, term = np.zeros_like(self.model), np.empty_like(self.model)
        for _, update in sorted(self.updates.items()):
            np.multiply(update, np.float32(1 / self.num_clients), out=term)
            np.add(total, term, out=total)
        return total


def make_app(num_clients: int, num_bytes: int, home: Path | None) -> FastAPI:
    """`home`: where what must survive goes; None: nothing has to."""
    app = FastAPI()
    store = None if home is None else DurableStore(home)
    federation = Federation(num_clients, np.zeros(num_bytes // 4, np.float32), store)

    @app.get("/rounds/{number}")
    async def wait(number: int) -> dict[str, int]:
        await federation.wait_for(number)
        return {"round": federation.round}

    @app.get("/model")
    async def model() -> Response:
        return Response(federation.served, media_type="application/octet-stream")

    @app.put("/updates/{client}")
    async def update(client: int, request: Request) -> dict[str, int]:
        body, position = bytearray(int(request.headers["content-length"])), 0
        async for chunk in request.stream():
            body[position : position + len(chunk)] = chunk
            position += len(chunk)
        await federation.take(client, np.frombuffer(body, np.float32))
        return {"round": federation.round}

    @app.get("/published")
    async def published() -> dict[str, Any]:
        return {"at": federation.published_at}

    return app


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="lethe bench bare", description="Serve the bare reference until stopped.")
    parser.add_argument("--port", type=int, default=8441)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--num-bytes", type=int, default=250_000, help="size of the model (float32)")
    parser.add_argument("--durable", action="store_true", help="check, seal and sync what arrives before answering")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() if options.durable else nullcontext() as home:
        app = make_app(options.clients, options.num_bytes, None if home is None else Path(home))
        uvicorn.run(app, host="127.0.0.1", port=options.port, log_level="warning", timeout_keep_alive=300)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
