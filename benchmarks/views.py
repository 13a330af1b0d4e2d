"""What people look at in a large federation: seconds of each view over HTTP, and the size of its answer.

The rows are made up and stand in a real database: a run of one cohort with very many rounds, each of which asked a part
of the clients, and a run of very many cohorts. The database is SQLite in a temporary directory, or what
`--database-url` names, which must be empty. Each view is asked for several times; the median and the first count.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import httpx
import sqlalchemy as sa
from pydantic import SecretStr

from benchmarks.figures import Printer
from coordinator.api.app import create_app
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.settings import Settings
from coordinator.store import accounts, schema
from coordinator.store import tables as t
from services.core.ids import uuid7
from services.wire.v1.resources import FederationCreate

AT_ONCE: Final = 20_000
TOKEN: Final = "the-token-of-this-benchmark"
BEGIN: Final = datetime(2026, 1, 1, tzinfo=UTC)
DIGEST: Final = "sha256:" + "0" * 64
TIMES: Final = 5


@dataclass(frozen=True, slots=True)
class Size:
    clients: int
    rounds: int
    asked: int
    cohorts: int


def new_id(at: datetime) -> UUID:
    return uuid7(at, os.urandom(10))


@dataclass
class Made:
    """The ids of what was made up."""

    federation_id: UUID
    clients: list[tuple[UUID, str]]
    long_run: UUID
    wide_run: UUID
    head_id: UUID


async def insert(coordinator: Coordinator, table: sa.Table, rows: Iterable[dict[str, Any]]) -> None:
    batch: list[dict[str, Any]] = []
    async with coordinator.database.write() as connection:
        for row in rows:
            batch.append(row)
            if len(batch) == AT_ONCE:
                await connection.execute(table.insert(), batch)
                batch.clear()
        if batch:
            await connection.execute(table.insert(), batch)


def run_row(run_id: UUID, federation_id: UUID, name: str, kind: str, num_clients: int) -> dict[str, Any]:
    model = {"name": "mlp", "params": {"input_shape": [8, 8], "num_classes": 10}}
    training = {"training": {"algorithm": "fedavg"}, "stop": {"rounds": 1}}
    spec = {"name": name, "model": model, "topology": {"kind": kind}, **training}
    ended = {"status": "completed", "ended_at": BEGIN, "created_at": BEGIN, "version": 1, "num_clients": num_clients}
    return {"id": run_id, "federation_id": federation_id, "name": name, "spec": spec, **ended}


def cohort_row(run_id: UUID, name: str, kind: str, parent_id: UUID | None, num_members: int) -> dict[str, Any]:
    return {
        "id": new_id(BEGIN),
        "run_id": run_id,
        "name": name,
        "epoch": 0,
        "phase": "finished",
        "program": "fedavg",
        "num_members": num_members,
        "num_clients_of_run": num_members,
        "kind": kind,
        "parent_id": parent_id,
        "group": "all",
        "is_lockstep": False,
        "extra_rounds": 0,
        "num_buffered": 0,
        "round": 1,
    }


async def make(coordinator: Coordinator, size: Size) -> Made:
    federation_id, long_run, wide_run = (new_id(BEGIN) for _ in range(3))
    clients = [(new_id(BEGIN), f"client-{number:05}") for number in range(size.clients)]
    async with coordinator.database.write() as connection:
        await accounts.add_federation(connection, federation_id, FederationCreate(name="large"), BEGIN)
        await accounts.add_clients(connection, {name: id for id, name in clients}, federation_id, BEGIN)
    runs = [
        run_row(long_run, federation_id, "long", "flat", size.clients),
        run_row(wide_run, federation_id, "wide", "isolated", size.clients),
    ]
    await insert(coordinator, t.runs, runs)
    line = cohort_row(long_run, "all", "line", None, size.clients)
    wide = [cohort_row(wide_run, f"cohort-{number:04}", "line", None, 10) for number in range(size.cohorts)]
    await insert(coordinator, t.cohorts, [line, *wide])
    await insert(coordinator, t.members, members(line["id"], clients))
    for place, cohort in enumerate(wide):
        own = [clients[(10 * place + offset) % size.clients] for offset in range(10)]
        await insert(coordinator, t.members, members(cohort["id"], own))
    head_id = await make_rounds(coordinator, long_run, line["id"], clients, size)
    async with coordinator.database.write() as connection:
        newest = {"head_id": head_id, "head_digest": DIGEST, "round": size.rounds}
        await connection.execute(t.cohorts.update().where(t.cohorts.c.id == line["id"]).values(newest))
    return Made(federation_id, clients, long_run, wide_run, head_id)


def members(cohort_id: UUID, clients: Sequence[tuple[UUID, str]]) -> Iterator[dict[str, Any]]:
    for client_id, name in clients:
        yield {"cohort_id": cohort_id, "client_id": client_id, "name": name, "active": True, "joined": False}


async def make_rounds(
    coordinator: Coordinator, run_id: UUID, cohort_id: UUID, clients: Sequence[tuple[UUID, str]], size: Size
) -> UUID:
    """Rounds with their tasks, updates, models and journal; returns the newest model."""
    rows: dict[sa.Table, list[dict[str, Any]]] = {
        table: [] for table in (t.rounds, t.tasks, t.updates, t.checkpoints, t.contributions, t.journal)
    }
    base_id, seq = new_id(BEGIN), 0
    of_run = {"run_id": run_id, "cohort_id": cohort_id, "epoch": 0}
    model = {**of_run, "digest": DIGEST, "scale": 1.0, "stored": True, "forgets": []}
    first = {"id": base_id, "round": 0, "kind": "init", "base_id": None, "metrics": {}, "created_at": BEGIN}
    await insert(coordinator, t.checkpoints, [{**model, **first}])
    for number in range(1, size.rounds + 1):
        at = BEGIN + timedelta(minutes=number)
        round_id, model_id = new_id(at), new_id(at)
        chosen = [clients[(number * size.asked + place) % len(clients)] for place in range(size.asked)]
        rows[t.rounds].append(round_row(of_run, round_id, number, at, size.asked))
        figures = {"validation_accuracy": 1 - 1 / (1 + number / 50), "validation_loss": 1 / (1 + number)}
        rest = {"round": number, "kind": "aggregate", "base_id": base_id, "metrics": figures, "created_at": at}
        rows[t.checkpoints].append({**model, "id": model_id, **rest})
        for place, client in enumerate(chosen):
            task = task_row(of_run, round_id, number, at, place, client)
            update = update_row(task, at)
            rows[t.tasks].append(task)
            rows[t.updates].append(update)
            weight = {"position": place, "weight": 1.0, "staleness": 0}
            rows[t.contributions].append(
                {"checkpoint_id": model_id, "update_id": update["id"], "client_id": client[0], **weight}
            )
        for kind in ("RoundOpened", "RoundClosed", "CheckpointPublished"):
            seq += 1
            told = {"seq": seq, "cohort_id": cohort_id, "at": at, "type": kind, "data": {"round": number}}
            rows[t.journal].append({"run_id": run_id, **told})
        base_id = model_id
        if number % 200 == 0 or number == size.rounds:
            for table, made in rows.items():
                await insert(coordinator, table, made)
                made.clear()
    await insert(coordinator, t.journal_heads, [{"run_id": run_id, "seq": seq}])
    return base_id


def round_row(of_run: dict[str, Any], round_id: UUID, number: int, at: datetime, asked: int) -> dict[str, Any]:
    counts = {"num_selected": asked, "num_open": 0, "num_received": asked, "num_failed": 0, "num_late": 0}
    flags = {"waiting_for_quorum": False, "close_at_deadline": False}
    kind = {"kind": "train", "status": "closed", "model_digest": DIGEST, "quorum": asked}
    times = {"opened_at": at, "closed_at": at + timedelta(seconds=30)}
    return {**of_run, "id": round_id, "number": number, **kind, **counts, **flags, **times}


def task_row(
    of_run: dict[str, Any], round_id: UUID, number: int, at: datetime, place: int, client: tuple[UUID, str]
) -> dict[str, Any]:
    has_failed = place == 0 and number % 10 == 0
    asked = {"kind": "train", "status": "done", "round": number, "base_round": number - 1, "model_digest": DIGEST}
    counts = {"position": place, "attempt": 1, "num_failures": int(has_failed), "progress": 1.0}
    who = {"client_id": client[0], "client_name": client[1], "failure": "no memory" if has_failed else None}
    return {**of_run, "id": new_id(at), "round_id": round_id, **who, **asked, **counts}


def update_row(task: dict[str, Any], at: datetime) -> dict[str, Any]:
    same = {name: task[name] for name in ("run_id", "cohort_id", "round_id", "client_id", "client_name", "epoch")}
    taken = {"kind": "train", "status": "consumed", "consumed_by": task["round_id"], "base_round": task["base_round"]}
    figures = {"num_samples": 100, "metrics": {}, "received_at": at, "seconds": 20.0, "stored": False}
    bytes_ = {"base_digest": DIGEST, "digest": DIGEST, "num_bytes": 250_000}
    return {**same, "id": new_id(at), "task_id": task["id"], **taken, **figures, **bytes_}


def views(made: Made, size: Size) -> dict[str, dict[str, Any]]:
    """Requests by the name of the view."""
    long, middle = f"/v1/runs/{made.long_run}", size.rounds // 2
    wanted = {"federation_id": str(made.federation_id), "subjects": [made.clients[0][1]]}
    preview = {"method": "POST", "url": "/v1/erasure-requests:preview", "json": wanted}
    paths = {
        "topology, one cohort": f"{long}/topology",
        "topology, many cohorts": f"/v1/runs/{made.wide_run}/topology",
        "series": f"{long}/series",
        "series, bytes": f"{long}/series?metric=bytes_received",
        "grid": f"{long}/grid",
        "grid, 500 × 500": f"{long}/grid?clients=500&rounds_from={max(1, middle - 499)}&rounds_to={middle}",
        "lineage, 10 steps": f"/v1/checkpoints/{made.head_id}/lineage/edges",
        "lineage, 1000 steps of a client": (
            f"/v1/checkpoints/{made.head_id}/lineage/edges?depth=1000&client={made.clients[0][0]}"
        ),
        "tasks of a client": f"/v1/clients/{made.clients[0][0]}/tasks",
        "workers": f"/v1/federations/{made.federation_id}/workers?limit=200",
        "system": "/v1/system",
        "events": f"/v1/federations/{made.federation_id}/events?limit=200",
        "events, from the middle": f"/v1/federations/{made.federation_id}/events?limit=200&after={middle}",
        "keys": "/v1/keys",
    }
    return {"preview of an erasure": preview} | {name: {"method": "GET", "url": path} for name, path in paths.items()}


async def measure(home: Path, url: str | None, size: Size, printer: Printer) -> None:
    settings = Settings(home=home, database_url=url, admin_token=SecretStr(TOKEN), blob_reserve_bytes=0)
    coordinator = Coordinator(settings)
    await schema.upgrade(coordinator.database)
    app = create_app(coordinator)
    async with app.router.lifespan_context(app):
        begun = time.perf_counter()
        made = await make(coordinator, size)
        if not coordinator.database.is_sqlite:
            async with coordinator.database.read() as connection:
                await connection.execute(sa.text("ANALYZE"))
        took_s = round(time.perf_counter() - begun, 1)
        printer.row({"view": "(making the rows)", "first_s": took_s, "median_s": None, "kb": None})
        headers = {"Authorization": f"Bearer {TOKEN}"}
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://it", headers=headers, timeout=600) as http:
            for name, request in views(made, size).items():
                took, kb = [], 0.0
                for _ in range(TIMES):
                    begun = time.perf_counter()
                    answer = await http.send(http.build_request(**request))
                    took.append(time.perf_counter() - begun)
                    kb = round(len(answer.raise_for_status().content) / 1000, 1)
                median_s = round(statistics.median(took), 4)
                printer.row({"view": name, "first_s": round(took[0], 4), "median_s": median_s, "kb": kb})


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog="lethe bench views", description=__doc__)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5000)
    parser.add_argument("--asked", type=int, default=100, help="clients in a round")
    parser.add_argument("--cohorts", type=int, default=1000, help="of the second run")
    parser.add_argument("--database-url", help="an empty Postgres; SQLite when absent")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    size = Size(given.clients, given.rounds, given.asked, given.cohorts)
    with tempfile.TemporaryDirectory(prefix="lethe-views-") as home:
        asyncio.run(measure(Path(home), given.database_url, size, Printer(as_json=given.json, benchmark="views")))
