"""A federation that is larger than any test could train: ten thousand clients, thousands of rounds and requests, a
thousand cohorts. Its rows are made up, and written into the database of a coordinator that does not run meanwhile.

`python -m tests.support.large_federation HOME`: prints the ids of what it made.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from benchmarks.views import BEGIN, DIGEST, Made, Size, cohort_row, insert, make, new_id, run_row
from coordinator.api.app import create_app
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.settings import Settings
from coordinator.store import schema
from coordinator.store import tables as t

SIZE: Final = Size(clients=10_000, rounds=5000, asked=4, cohorts=1000)
NUM_REQUESTS: Final = 3000
LONG: Final = "a-name-that-is-as-long-as-names-of-clients-may-be-and-no-longer"
STATUSES: Final = ("completed", "awaiting_approval", "denied", "failed", "completed", "cancelled")
"""Nothing that a coordinator would go on with."""
MODEL: Final = {"name": "mlp", "params": {"input_shape": [8, 8], "num_classes": 10}}


async def write(home: Path) -> dict[str, str]:
    coordinator = Coordinator(Settings(home=home, blob_reserve_bytes=0))
    await schema.upgrade(coordinator.database)
    app = create_app(coordinator)
    async with app.router.lifespan_context(app):
        made = await make(coordinator, SIZE)
        await _look_alive(coordinator, made)
        requests = list(_requests(made))
        await insert(coordinator, t.erasures, (request for request, _ in requests))
        await insert(coordinator, t.subjects, (subject for _, subject in requests))
        tree_run, fenced = await _tree(coordinator, made, requests[0][0]["id"])
        await insert(coordinator, t.runs, _more_runs(made))
        await _specify(coordinator)
    return {
        "federation": str(made.federation_id),
        "long": str(made.long_run),
        "wide": str(made.wide_run),
        "deep": str(tree_run),
        "checkpoint": str(made.head_id),
        "client": str(made.clients[0][0]),
        "request": str(fenced),
    }


async def _look_alive(coordinator: Coordinator, made: Made) -> None:
    """Every third worker was here once; one client has the longest name that there may be."""
    seen = [id for id, _ in made.clients[::3]]
    c = t.clients.c
    async with coordinator.database.write() as connection:
        for first in range(0, len(seen), 500):
            known = {"last_seen_at": datetime.now(UTC) - timedelta(hours=1), "agent_version": "0.1.0"}
            await connection.execute(t.clients.update().where(c.id.in_(seen[first : first + 500])).values(**known))
        await connection.execute(sa.update(t.clients).where(c.id == made.clients[1][0]).values(name=LONG))


async def _specify(coordinator: Coordinator) -> None:
    """Runs as a coordinator reads them."""
    r, c = t.runs.c, t.cohorts.c
    async with coordinator.database.write() as connection:
        await connection.execute(sa.update(t.cohorts).where(c.name == "all").values(round=SIZE.rounds))
        for id, spec in (await connection.execute(sa.select(r.id, r.spec))).all():
            whole = {**spec, "model": MODEL, "stop": {"rounds": SIZE.rounds}}
            await connection.execute(sa.update(t.runs).where(r.id == id).values(spec=whole))


def _requests(made: Made) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """One a client; the first is over and touched the tree."""
    now = datetime.now(UTC)
    for number in range(NUM_REQUESTS):
        status, (client_id, name) = STATUSES[number % len(STATUSES)], made.clients[number]
        created = now - timedelta(hours=number + 1)
        yield (
            _request(made.federation_id, number, status, created, name),
            {
                "erasure_id": _ids(number),
                "client_id": client_id,
                "name": name,
                "active": status == "awaiting_approval",
            },
        )


_known: Final[dict[int, UUID]] = {}


def _ids(number: int) -> UUID:
    return _known.setdefault(number, new_id(BEGIN + timedelta(seconds=number)))


def _request(federation_id: UUID, number: int, status: str, created: datetime, client: str) -> dict[str, Any]:
    is_over = status == "completed"
    ended = created + timedelta(minutes=30) if is_over else None
    return {
        "id": _ids(number),
        "federation_id": federation_id,
        "status": status,
        "scope": "client",
        "samples": {},
        "method": "auto",
        "guarantee": "exact",
        "regulation": "GDPR Art. 17",
        "requested_by": f"client {client}" if number % 2 else "Dr. Weber",
        "salt": "0" * 64,
        "created_at": created,
        "legal_deadline": created + timedelta(days=30),
        "params": {},
        "version": 1,
        "reason": "the audit found the data, and no other method applies" if status == "failed" else None,
        "callbacks": [],
        "chosen": "reinit" if is_over else None,
        "fenced_at": created + timedelta(minutes=1) if is_over else None,
        "first_clean_at": created + timedelta(minutes=2) if is_over else None,
        "completed_at": ended,
        "external_ref": f"DSR-2026-{number:05}" if number % 3 else f"<b>{'very long ticket ' * 8}</b>{number}",
        "needs_approval": status == "awaiting_approval",
    }


async def _tree(coordinator: Coordinator, made: Made, erasure_id: UUID) -> tuple[UUID, UUID]:
    """A thousand cohorts in four levels; the first path from a leaf to the root is fenced."""
    run_id = new_id(BEGIN)
    await insert(coordinator, t.runs, [run_row(run_id, made.federation_id, "deep", "tree", 889)])
    levels: list[list[dict[str, Any]]] = [[cohort_row(run_id, "root", "root", None, 889)]]
    for level, (kind, num) in enumerate((("inner", 10), ("inner", 100), ("leaf", 889)), start=1):
        above = levels[-1]
        levels.append(
            [_node(run_id, kind, level, place, above[place * len(above) // num]["id"]) for place in range(num)]
        )
    path = [level[0] for level in levels]
    for cohort in path:
        cohort["epoch"] = 1
    path[-1]["phase"] = "retired"
    for level_rows in levels:
        await insert(coordinator, t.cohorts, level_rows)
    leaves = zip(levels[-1], made.clients, strict=False)
    rows = ({"cohort_id": leaf["id"], "client_id": client[0], "name": client[1]} for leaf, client in leaves)
    await insert(coordinator, t.members, ({**row, "active": True, "joined": False} for row in rows))
    await insert(coordinator, t.lines, _lines(path, erasure_id))
    return run_id, erasure_id


def _node(run_id: UUID, kind: str, level: int, place: int, parent_id: UUID) -> dict[str, Any]:
    name = (
        f"leaf:client-{place:05}" if kind == "leaf" else f"node:{(7919 * level + 104729 * place) % 16**6:06x}{place:06}"
    )
    return cohort_row(run_id, name, kind, parent_id, 1 if kind == "leaf" else 9)


def _lines(path: Sequence[dict[str, Any]], erasure_id: UUID) -> Iterator[dict[str, Any]]:
    for cohort in path:
        action = "retired" if cohort["kind"] == "leaf" else "re-initialised"
        yield {
            "erasure_id": erasure_id,
            "cohort_id": cohort["id"],
            "run_id": cohort["run_id"],
            "cohort_name": cohort["name"],
            "action": action,
            "epoch_before": 0,
            "epoch_after": 1,
            "round_at_fence": 1,
            "target_round": 2,
            "head_before": DIGEST,
            "sources": [],
            "clean_at": BEGIN,
            "done_at": BEGIN,
        }


def _more_runs(made: Made) -> Iterator[dict[str, Any]]:
    """Enough that the list of runs has several pages, and some that wait for somebody."""
    for number in range(400):
        row = run_row(new_id(BEGIN), made.federation_id, f"sweep-{number:03}", "flat", 10)
        row |= {"hold": None, "reason": None}
        if number % 40 == 0:
            row |= {"status": "paused", "hold": "operator", "ended_at": None, "reason": "an operator paused it"}
        yield row


if __name__ == "__main__":
    print(json.dumps(asyncio.run(write(Path(sys.argv[1])))))
