"""The bare reference: a federated round over FastAPI with nothing else. Not durable, no database, no credentials, no
checks: bodies are raw float32 held in memory. What our coordinator costs more than this is the price of durability.

Its rounds are those of the coordinator's benchmark: each client waits for a round, gets the model, puts its update;
when all have, the mean is added to the model and the next round opens.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import uvicorn
from fastapi import FastAPI, Request, Response

Floats = npt.NDArray[np.float32]


class Federation:
    def __init__(self, num_clients: int, model: Floats) -> None:
        self.num_clients, self.model, self.served = num_clients, model, model.tobytes()
        self.round = 1
        self.updates: dict[int, Floats] = {}
        self.published_at = [time.time()]
        self.opened = asyncio.Condition()

    async def wait_for(self, number: int) -> None:
        async with self.opened:
            await self.opened.wait_for(lambda: self.round >= number)

    async def take(self, client: int, update: Floats) -> None:
        self.updates[client] = update
        if len(self.updates) == self.num_clients:
            self.model = self.model + self._mean()
            self.served = self.model.tobytes()
            self.updates.clear()
            self.published_at.append(time.time())
            async with self.opened:
                self.round += 1
                self.opened.notify_all()

    def _mean(self) -> Floats:
        total, term = np.zeros_like(self.model), np.empty_like(self.model)
        for _, update in sorted(self.updates.items()):
            np.multiply(update, np.float32(1 / self.num_clients), out=term)
            np.add(total, term, out=total)
        return total


def make_app(num_clients: int, num_bytes: int) -> FastAPI:
    app = FastAPI()
    federation = Federation(num_clients, np.zeros(num_bytes // 4, np.float32))

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
    options = parser.parse_args(argv)
    app = make_app(options.clients, options.num_bytes)
    uvicorn.run(app, host="127.0.0.1", port=options.port, log_level="warning", timeout_keep_alive=300)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
