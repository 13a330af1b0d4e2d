"""The sealed history of updates in a coordinator: what is kept, what a method makes of it, what an erasure leaves."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from coordinator.blobs.files import FileBlobStore
from coordinator.engine.entities import Job
from coordinator.keys.port import client_key
from coordinator.runtime import kept_updates
from coordinator.runtime.sweeping import sweep_uploads
from coordinator.store import tables as t
from coordinator.store.rows import to_entity
from services.core.errors import Rejected
from tests.integration.test_approximate_erasure import assert_nothing_is_left_of, forget, kinds_by_round
from tests.integration.test_inventory import certified, stored
from tests.support.federation import Federation, federation

pytestmark = pytest.mark.anyio
NAMES = ("c0", "c1", "c2", "c3")
SEALED_ONLY: dict[str, Any] = {"retention": {"updates": "none"}, "history": {"updates": {"compression": "none"}}}
COPIES_ONLY: dict[str, Any] = {"retention": {"updates": "none"}, "history": {"updates": {"dtype": "int8"}}}


async def settled(f: Federation) -> None:
    """Every chore of the history is done."""
    for row in await f.rows(t.jobs, t.jobs.c.kind == "keep-updates"):
        await f.wait(t.jobs, row.id, lambda job: job.status in ("done", "cancelled"))
    await f.coordinator.storage.delete_dropped()  # which the chore does after it is noted as done


async def trained_run(f: Federation, **changes: Any) -> UUID:
    run_id = await f.create_run(**{"stop": {"rounds": 3}, **SEALED_ONLY, **changes})
    assert (await f.wait_for_run(run_id)).status == "completed"
    await settled(f)
    return run_id


async def copies(f: Federation, **where: Any) -> list[Any]:
    conditions = [t.kept_updates.c[name] == value for name, value in where.items()]
    return await f.rows(t.kept_updates, t.kept_updates.c.status == "stored", *conditions)


def keys(f: Federation) -> set[str]:
    return f.coordinator.sealer.keys.names()


async def test_each_round_is_kept_as_it_was_sent_when_the_history_has_no_loss(tmp_path: Path) -> None:
    async with federation(tmp_path, *NAMES) as f:
        f.work()
        await trained_run(f)
        found = await copies(f)
        assert {(row.round, row.client_name) for row in found} == {(n, name) for n in (1, 2, 3) for name in NAMES}
        assert {client_key(f.clients[name]) for name in NAMES} <= keys(f)
        updates = await f.rows(t.updates)
        assert {row.source for row in found} == {row.digest for row in updates} == {row.digest for row in found}
        assert all(row.stored for row in updates), "a history without loss is the updates themselves"
        assert {row.digest for row in found} <= await stored(f)


async def test_a_lossy_history_keeps_copies_in_place_of_the_updates(tmp_path: Path) -> None:
    async with federation(tmp_path, *NAMES) as f:
        f.work()
        await trained_run(f, **COPIES_ONLY)
        found, there = await copies(f), await stored(f)
        assert {(row.round, row.client_name) for row in found} == {(n, name) for n in (1, 2, 3) for name in NAMES}
        assert not any(row.stored for row in await f.rows(t.updates))
        assert {row.digest for row in found} <= there and not {row.source for row in found} & there


async def test_federaser_walks_through_sealed_updates_to_the_same_models(tmp_path: Path) -> None:
    made = {}
    for name, changes in (("plain", {"retention": {"updates": "all"}, "history": {}}), ("sealed", {})):
        async with federation(tmp_path / name, *NAMES) as f:
            f.work()
            run_id = await trained_run(f, **changes)
            erasure = await forget(f, "c2", "federaser")
            assert erasure.status == "completed", erasure.reason
            await f.wait_for_run(run_id)
            assert await kinds_by_round(f, 1) == {1: "forgotten", 2: "forgotten", 3: "forgotten"}
            made[name] = {place: digest for place, digest in (await f.published(run_id)).items() if place[1] == 1}
            await assert_nothing_is_left_of(f, "c2")
            assert not list((f.coordinator.settings.home / "scratch").glob("*/*"))
    assert made["plain"] == made["sealed"]


async def test_an_erasure_destroys_the_key_and_the_copies_and_a_second_one_never_meets_them(tmp_path: Path) -> None:
    async with federation(tmp_path, *NAMES) as f:
        f.work()
        run_id = await trained_run(f)
        before = await copies(f)
        erasure = await forget(f, "c2", "federaser")
        assert erasure.status == "completed", erasure.reason
        await f.wait_for_run(run_id)
        await settled(f)
        assert client_key(f.clients["c2"]) not in keys(f)
        assert not await f.rows(t.kept_updates, t.kept_updates.c.client_id == f.clients["c2"])
        first = await certified(f, erasure.id)
        gone = {row.digest for row in before if row.client_name == "c2" or row.round > 1}
        assert gone <= first["update"] and not gone & await stored(f)
        assert len(first["sealing-key"]) >= 2, "the leaver's, and those of the epochs that had it"
        assert {(row.round, row.client_name) for row in await copies(f)} == {
            (n, name) for n in (1, 2, 3) for name in NAMES if name != "c2"
        }
        second = await forget(f, "c3", "federaser")
        assert second.status == "completed", second.reason
        inputs = {digest for row in await f.rows(t.jobs, t.jobs.c.epoch == 2) for digest in row.inputs}
        own = {row.digest for row in await f.rows(t.updates, t.updates.c.client_id.in_([f.clients["c2"]]))}
        assert own and not inputs & (own | {row.digest for row in before if row.client_name == "c2"})
        for name in ("c2", "c3"):
            await assert_nothing_is_left_of(f, name)


async def test_who_forgets_samples_keeps_its_key_and_none_of_its_old_copies(tmp_path: Path) -> None:
    async with federation(tmp_path, *NAMES) as f:
        f.work()
        run_id = await trained_run(f)
        old = await copies(f)
        erasure = await f.wait_for_erasure(await f.erase("c2", scope="samples", samples={"c2": [0, 1]}))
        assert erasure.status == "completed", erasure.reason
        await f.wait_for_run(run_id)
        await settled(f)
        for row in old:  # of round 1 those of the others are clean, and in no model any more: they go a little later
            if row.round == 1 and row.client_name != "c2":
                await f.wait(t.kept_updates, row.id, lambda copy: copy.status == "dropped")
        after = await copies(f)
        assert {(row.round, row.client_name) for row in after} == {(n, name) for n in (1, 2, 3) for name in NAMES}
        of_c2 = {row.digest for row in old if row.client_name == "c2"}
        assert not {row.digest for row in after} & of_c2 and not of_c2 & await stored(f)
        assert client_key(f.clients["c2"]) in keys(f)


async def test_what_the_policy_does_not_keep_is_said_when_a_method_needs_it(tmp_path: Path) -> None:
    async with federation(tmp_path, *NAMES) as f:
        f.work()
        await trained_run(f, stop={"rounds": 5}, history={"updates": {"interval": 2, "dtype": "int8"}})
        assert {row.round for row in await copies(f)} == {1, 3, 5}
        with pytest.raises(Rejected, match=r"rounds 2, 4 of cohort all are not stored: give interval 2"):
            await f.erase("c2", method="federaser", guarantee="approximate")
        erasure = await forget(f, "c2", "federaser", params={"interval": 2})
        assert erasure.status == "completed", erasure.reason
        assert await kinds_by_round(f, 1) == {1: "forgotten", 3: "forgotten", 5: "forgotten"}


async def test_a_history_above_its_budget_is_thinned_and_not_sealed_again(tmp_path: Path) -> None:
    async with federation(tmp_path, *NAMES) as f:
        f.work()
        await trained_run(f, stop={"rounds": 1})
        of_a_round = sum(row.num_bytes for row in await copies(f))
        policy = {"compression": "none", "budget_bytes": 3 * of_a_round}
        run_id = await trained_run(f, stop={"rounds": 6}, history={"updates": policy})
        found = await copies(f, run_id=run_id)
        assert {row.round for row in found} == {1, 3, 5}
        assert sum(row.num_bytes for row in found) <= policy["budget_bytes"]
        dropped = await f.rows(t.kept_updates, t.kept_updates.c.status == "dropped")
        assert {row.round for row in dropped} == {2, 4, 6}
        assert {row.digest for row in found} <= await stored(f)
        assert not {row.digest for row in dropped if row.run_id == run_id} & await stored(f)


@pytest.mark.parametrize("point", ["history.after-announcement", "history.after-adoption"])
async def test_a_chore_that_dies_leaves_nothing_that_no_row_names(
    point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    died = asyncio.Event()

    def die(name: str) -> None:
        if name == point:
            died.set()
            raise ConnectionAbortedError(name)

    async with federation(tmp_path, *NAMES) as f:
        f.work()
        monkeypatch.setattr(kept_updates, "crashpoint", die)
        run_id = await f.create_run(stop={"rounds": 1}, **COPIES_ONLY)
        await f.wait_for_run(run_id)
        await asyncio.wait_for(died.wait(), 30)
        monkeypatch.undo()
        left = {one.digest for one in await f.rows(t.kept_updates)}
        assert len(left) == len(NAMES)
        (row,) = await f.rows(t.jobs, t.jobs.c.kind == "keep-updates")
        job = to_entity(Job, row)
        await f.coordinator.kept_updates.run(job, job.lease_token or "")
        found = {one.digest for one in await copies(f)}
        assert found == left
        assert await sweep_uploads(f.coordinator.database, f.coordinator.storage, timedelta(0)) == len(NAMES)
        assert {row.status for row in await f.rows(t.blobs, t.blobs.c.origin == "copy")} == {"stored"}
        models = {one.digest for one in await f.rows(t.checkpoints)}
        assert await stored(f) == found | models


async def test_an_update_that_is_erased_while_it_is_sealed_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its copy is named when the purge comes, and stored only afterwards."""
    real, reached, may_go_on = FileBlobStore.adopt, asyncio.Event(), asyncio.Event()

    async def slow(self: Any, owner: UUID, name: str, path: Path) -> None:
        if any(row.id.hex == name and row.origin == "copy" for row in await f.rows(t.blobs)):
            reached.set()
            await may_go_on.wait()
        await real(self, owner, name, path)

    async with federation(tmp_path, *NAMES) as f:
        f.work()
        monkeypatch.setattr(FileBlobStore, "adopt", slow)
        run_id = await f.create_run(stop={"rounds": 1}, **COPIES_ONLY)
        await asyncio.wait_for(reached.wait(), 30)
        erasure = await f.wait_for_erasure(await f.erase("c2"))
        assert erasure.status == "completed", erasure.reason
        may_go_on.set()
        await f.wait_for_run(run_id)
        await settled(f)
        assert "c2" not in {row.client_name for row in await copies(f)}
        assert client_key(f.clients["c2"]) not in keys(f)
        rows = await f.rows(t.kept_updates)
        assert not [row for row in rows if row.client_name == "c2"]
        named = {row.digest for row in rows} | {row.digest for row in await f.rows(t.checkpoints)}
        assert await stored(f) <= named | {row.digest for row in await f.rows(t.updates, t.updates.c.stored)}
