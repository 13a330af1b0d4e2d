"""What an erasure finds, deletes and certifies, when requests overlap, work is in flight and kernels are refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from coordinator.engine.messages import ClaimTasks
from coordinator.runtime import pump
from coordinator.runtime.storage import cached_blob
from coordinator.store import tables as t
from services.audit.artefact_list import read_list
from services.audit.certificate import artefact_root
from services.audit.keys import public_pem
from services.audit.verification import Beside, check
from services.core.errors import Rejected
from tests.support.federation import Federation, federation

pytestmark = pytest.mark.anyio
NAMES = ("c0", "c1", "c2", "c3")


async def certified(f: Federation, erasure_id: UUID) -> dict[str, set[str]]:
    """Digests by kind, of everything that the certificate accounts for."""
    (row,) = await f.rows(t.certificates, t.certificates.c.erasure_id == erasure_id)
    path = f.coordinator.erasure_steps.certificates.files.list_path(
        erasure_id, artefact_root(row.envelope.encode()) or ""
    )
    with path.open("rb") as file:
        issuer = public_pem(f.coordinator.signing_keys.load().public_key())
        verdict = check(row.envelope.encode(), issuer, beside=Beside(list=file))
        assert verdict.valid and verdict.complete, verdict.checks
        file.seek(0)
        found: dict[str, set[str]] = {}
        for leaf in read_list(file):
            found.setdefault(leaf.kind, set()).add(leaf.digest)
    return found


async def stored(f: Federation) -> set[str]:
    """Digests of all whose bytes are there; every object in the store is announced by a row."""
    names = {one.name async for one in f.coordinator.blobs.list()}
    rows = {row.id.hex: row for row in await f.rows(t.blobs)}
    assert names <= rows.keys()
    return {rows[name].digest for name in names}


async def tainted(f: Federation, name: str) -> set[str]:
    """Digests of the models with the client in them, walked by hand over bases and parents."""
    rows = {row.id: row for row in await f.rows(t.checkpoints)}
    above: dict[UUID, set[UUID]] = {row.id: {row.base_id} - {None} for row in rows.values()}
    for edge in await f.rows(t.parents):
        above[edge.checkpoint_id].add(edge.parent_id)
    with_it = {c.checkpoint_id for c in await f.rows(t.contributions) if c.client_id == f.clients[name]}
    while more := {child for child, parents in above.items() if parents & with_it} - with_it:
        with_it |= more
    return {rows[checkpoint_id].digest for checkpoint_id in with_it}


@asynccontextmanager
async def kernels_stand_still(monkeypatch: pytest.MonkeyPatch, at: str) -> AsyncIterator[asyncio.Event]:
    """Kernels stop before this function of the pump while the context lasts; the event tells that one has."""
    real: Callable[..., Awaitable[Any]] = getattr(pump, at)
    reached, may_go_on = asyncio.Event(), asyncio.Event()

    async def stopped(*arguments: Any) -> Any:
        reached.set()
        await may_go_on.wait()
        return await real(*arguments)

    monkeypatch.setattr(pump, at, stopped)
    try:
        yield reached
    finally:
        may_go_on.set()
        monkeypatch.setattr(pump, at, real)


async def test_a_certificate_accounts_for_models_that_another_erasure_took_over(tmp_path: Path) -> None:
    async with federation(tmp_path, *NAMES) as f:
        f.work()
        run_id = await f.create_run(stop={"rounds": 3})
        await f.wait_for_run(run_id)
        f.offline |= set(NAMES)
        first = await f.erase("c1")
        await f.wait(t.erasures, first, lambda row: row.fenced_at is not None)
        second = await f.erase("c2")
        await f.wait(t.erasures, second, lambda row: row.fenced_at is not None)
        expected = {name: await tainted(f, name) for name in ("c1", "c2")}
        f.offline.clear()
        for erasure_id, name in ((first, "c1"), (second, "c2")):
            assert (await f.wait_for_erasure(erasure_id)).status == "completed"
            found = await certified(f, erasure_id)
            assert found["checkpoint"] == expected[name]
            updates = await f.rows(t.updates)
            own = {u.digest for u in updates if u.client_id == f.clients[name]}
            assert found["update"] == own | {u.digest for u in updates if u.base_digest in expected[name]}
            assert not (found["checkpoint"] | found["update"]) & await stored(f)


async def test_models_of_runs_that_began_with_a_tainted_one_are_found(tmp_path: Path) -> None:
    async with federation(tmp_path, *NAMES) as f:
        f.work()
        first = await f.create_run(stop={"rounds": 2})
        await f.wait_for_run(first)
        begun_with = (await f.heads(first))["all"]
        second = await f.create_run(init=begun_with, clients=["c1", "c2", "c3"], stop={"rounds": 2})
        await f.wait_for_run(second)
        erasure_id = await f.erase("c0")
        assert (await f.wait_for_erasure(erasure_id)).status == "completed"
        found = await certified(f, erasure_id)
        later = {digest for (_, _, number), digest in (await f.published(second)).items() if number}
        assert len(later) == 2 and later <= found["checkpoint"]
        trained_there = {u.digest for u in await f.rows(t.updates, t.updates.c.run_id == second)}
        assert trained_there and trained_there <= found["update"]
        assert not (later | trained_there | {begun_with}) & await stored(f)


async def test_no_run_begins_with_a_superseded_model(tmp_path: Path) -> None:
    async with federation(tmp_path, *NAMES) as f:
        f.work()
        run_id = await f.create_run(stop={"rounds": 2})
        await f.wait_for_run(run_id)
        superseded = (await f.heads(run_id))["all"]
        f.offline |= set(NAMES)
        await f.wait(t.erasures, await f.erase("c0"), lambda row: row.fenced_at is not None)
        assert superseded in await stored(f)
        with pytest.raises(Rejected, match="superseded by an erasure"):
            await f.create_run(init=superseded)


@pytest.mark.parametrize("at", ["_announce", "shell_patiently"])
async def test_what_a_kernel_made_of_the_leavers_update_is_gone(
    at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fence falls before its result is announced, and before it is posted."""
    async with federation(tmp_path, *NAMES) as f:
        async with kernels_stand_still(monkeypatch, at) as reached:
            run_id = await f.create_run(stop={"rounds": 2})
            f.work()
            await asyncio.wait_for(reached.wait(), 30)
            f.offline |= set(NAMES)
            erasure_id = await f.erase("c0")
            await f.wait(t.erasures, erasure_id, lambda row: row.fenced_at is not None)
        f.offline.clear()
        await f.wait_for_run(run_id)
        assert (await f.wait_for_erasure(erasure_id)).status == "completed"
        (job,) = await f.rows(t.jobs, t.jobs.c.status == "cancelled")
        found = await certified(f, erasure_id)
        known = {row.digest for table in (t.updates, t.checkpoints) for row in await f.rows(table)}
        assert await stored(f) <= known | {f.init}
        assert not await f.rows(t.blobs, t.blobs.c.origin_id == job.id)
        assert not found.get("step", set()) & await stored(f)  # whoever made it may have given it up before the purge


async def test_uploads_that_were_never_submitted_are_found(tmp_path: Path) -> None:
    async with federation(tmp_path, *NAMES) as f:
        f.work()
        await f.wait_for_run(await f.create_run(stop={"rounds": 1}))
        f.offline |= set(NAMES)
        await f.create_run(stop={"rounds": 1}, init=(await heads_of(f)))
        tasks = {name: await held_by(f, name) for name in NAMES}
        uploads = {
            name: await f.put({"w": np.full(64, 1 + number, np.float32)}, tasks[name])
            for number, name in enumerate(NAMES)
        }
        f.offline.clear()
        erasure_id = await f.erase("c0", recovery_rounds=0)
        assert (await f.wait_for_erasure(erasure_id)).status == "completed"
        found = await certified(f, erasure_id)
        assert found["upload"] == set(uploads.values())  # all had a model with c0 to train from
        assert not found["upload"] & await stored(f)
        with pytest.raises(Rejected, match="no-task"):
            await f.put({"w": np.ones(64, np.float32)}, tasks["c0"])


async def heads_of(f: Federation) -> str | None:
    (run,) = await f.rows(t.runs)
    return (await f.heads(run.id))["all"]


async def held_by(f: Federation, name: str) -> Any:
    granted: tuple[Any, ...] = ()
    while not granted:
        granted = await f.coordinator.shell.handle(ClaimTasks(f.clients[name]))
        await asyncio.sleep(0.01)
    return granted[0].task


async def test_purged_blobs_leave_the_cache(tmp_path: Path) -> None:
    async with federation(tmp_path, *NAMES) as f:
        f.work()
        run_id = await f.create_run(stop={"rounds": 1})
        await f.wait_for_run(run_id)
        head = (await f.heads(run_id))["all"] or ""
        blob = (await f.coordinator.storage.find(f.id, [head]))[head]
        assert len(await f.coordinator.storage.whole(blob)) == blob.num_bytes
        assert await f.coordinator.bus.cache_get(cached_blob(blob.id)) is not None
        await f.wait_for_erasure(await f.erase("c0"))
        assert await f.coordinator.bus.cache_get(cached_blob(blob.id)) is None
