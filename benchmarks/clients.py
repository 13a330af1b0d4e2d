"""The load side: N clients in one process, each with its own credential and connection, speaking the worker protocol
without training. Each update is made ready before it is asked for (payload.py), so that the server is what is measured.

`take_part` speaks to a coordinator, `take_part_barely` to the bare reference, through the same connections.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import resource
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.payload import Payload
from benchmarks.raw_http import Answer, AnswerUnusable, Connection
from services.wire.v1.work import RESULT_HEADER
from worker.agent import HANDED_IN_AT_ONCE_BYTES

WAIT_S: Final = 25
LATER: Final = {429, 503}


class Refused(Exception):
    def __init__(self, what: str, answer: Answer) -> None:
        super().__init__(f"{what}: HTTP {answer.status} {answer.body[:500].decode(errors='replace')}")


@dataclass
class Tally:
    """What happened in this process, as it is written for the parent."""

    num_submitted: int = 0
    num_put_off: int = 0
    receipts: list[dict[str, Any]] = field(default_factory=list)
    """One per task: run, round, client (its number) and the instant its claim was answered."""


async def take_part(
    number: int, connection: Connection, payload: Payload, tally: Tally, num_tasks: int | None, waiting: asyncio.Event
) -> None:
    """Open a session and carry out `num_tasks` tasks (without end when None). Sets `waiting` before the first claim."""
    session = {"agent_version": "benchmark", "protocol": 1, "devices": []}
    expect(200, "session", await connection.json("POST", "/v1/sessions", session))
    waiting.set()
    done, update = 0, payload.update(number, 0)
    while num_tasks is None or done < num_tasks:
        claim = await patiently(connection, tally, "POST", "/v1/tasks/claim", headers=[("Prefer", f"wait={WAIT_S}")])
        at = time.time()
        if claim.status == 204:
            continue
        for grant in expect(200, "claim", claim).json()["tasks"]:
            tally.receipts.append({"run": grant["run_id"], "round": grant["round"], "client": number, "at": at})
            await _carry_out(connection, grant, update, tally)
            done += 1
            update = payload.update(number, done)


async def _carry_out(
    connection: Connection, grant: dict[str, Any], update: tuple[str, Sequence[memoryview]], tally: Tally
) -> None:
    digest, pieces = update
    weights = await patiently(connection, tally, "GET", f"/v1/blobs/{grant['weights']}")
    if expect(200, "download", weights).num_bytes != grant["weights_bytes"]:
        raise AnswerUnusable(f"{weights.num_bytes} bytes of {grant['weights_bytes']}")
    octets = [("Content-Type", "application/octet-stream"), ("Lethe-Task", grant["task_id"])]
    submission = {"lease_token": grant["lease_token"], "update": digest, "num_samples": 600, "metrics": {}}
    if sum(map(len, pieces)) <= HANDED_IN_AT_ONCE_BYTES:
        octets.append((RESULT_HEADER, json.dumps(submission)))
    stored = await patiently(connection, tally, "PUT", f"/v1/blobs/{digest}", headers=octets, body=pieces)
    if stored.status not in (200, 201):
        raise Refused("upload", stored)
    if stored.json().get("submission") is not None:
        tally.num_submitted += 1
        return
    body = (json.dumps(submission).encode(),)
    typed = [("Content-Type", "application/json")]
    path = f"/v1/tasks/{grant['task_id']}/result"
    expect(200, "result", await patiently(connection, tally, "PUT", path, headers=typed, body=body))
    tally.num_submitted += 1


async def take_part_barely(
    number: int, connection: Connection, payload: Payload, tally: Tally, num_tasks: int, waiting: asyncio.Event
) -> None:
    waiting.set()
    for task in range(1, num_tasks + 1):
        expect(200, "round", await connection.request("GET", f"/rounds/{task}"))
        model = expect(200, "download", await connection.request("GET", "/model"))
        if model.num_bytes != payload.raw_bytes:
            raise AnswerUnusable(f"{model.num_bytes} bytes of {payload.raw_bytes}")
        stored = await connection.request("PUT", f"/updates/{number}", body=payload.raw(number, task))
        expect(200, "upload", stored)
        tally.num_submitted += 1


async def patiently(connection: Connection, tally: Tally, method: str, path: str, **request: Any) -> Answer:
    """Ask again after the given delay while the server is busy."""
    while True:
        answer = await connection.request(method, path, **request)
        if answer.status not in LATER:
            return answer
        tally.num_put_off += 1
        await asyncio.sleep(float(answer.headers.get("retry-after", 0.1)))


def expect(status: int, what: str, answer: Answer) -> Answer:
    if answer.status != status:
        raise Refused(what, answer)
    return answer


async def run(options: argparse.Namespace) -> dict[str, Any]:
    payload, tally = Payload(options.payload_bytes), Tally()
    tokens = options.tokens.read_text().split() if options.tokens else [None] * options.clients
    connections = [Connection("127.0.0.1", options.port, token) for token in tokens]
    waiting = [asyncio.Event() for _ in connections]
    role: Any = take_part_barely if options.bare else take_part
    started = time.time()
    clients = [
        asyncio.ensure_future(role(number, connection, payload, tally, options.tasks, ready))
        for number, (connection, ready) in enumerate(zip(connections, waiting, strict=True))
    ]
    everybody = asyncio.gather(*clients)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, everybody.cancel)
    everybody_waits = asyncio.gather(*(ready.wait() for ready in waiting))
    await asyncio.wait([everybody, everybody_waits], return_when=asyncio.FIRST_COMPLETED)
    print("waiting", flush=True)
    with contextlib.suppress(asyncio.CancelledError):
        await everybody
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "seconds": time.time() - started,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "num_sent": sum(connection.num_sent for connection in connections),
        "num_received": sum(connection.num_received for connection in connections),
        "num_submitted": tally.num_submitted,
        "num_put_off": tally.num_put_off,
        "receipts": tally.receipts,
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="lethe bench clients", description="Be many clients that do not train. Prints what happened as JSON."
    )
    parser.add_argument("--port", type=int, required=True, help="of the server, on the loopback")
    parser.add_argument("--tokens", type=Path, help="a file with one client credential per line")
    parser.add_argument("--bare", action="store_true", help="speak to the bare reference")
    parser.add_argument("--clients", type=int, default=2, help="with --bare, which has no credentials")
    parser.add_argument("--tasks", type=int, help="how many tasks each client does; until SIGTERM when absent")
    parser.add_argument("--payload-bytes", type=int, default=250_000)
    parser.add_argument("--out", type=Path, help="where the result goes; standard output when absent")
    options = parser.parse_args(argv)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    result = json.dumps(asyncio.run(run(options)))
    if options.out is None:
        print(result)
    else:
        options.out.write_text(result)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
