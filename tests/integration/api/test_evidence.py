"""Tombstones or signing key are lost, changed or somebody else's: not ready, with the command that helps."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr

from coordinator.api.app import create_app
from coordinator.engine.react import EVIDENCE
from coordinator.runtime import remedies
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.settings import Settings
from coordinator.runtime.signing import PUBLIC_KEYS, SIGNING_KEY
from coordinator.store import evidence as known
from coordinator.tombstones.files import FileTombstoneLog
from coordinator.tombstones.taint_lists import TAINT, TaintLists
from services.audit.keys import generate_key, save_key
from services.audit.verification import check
from tests.integration.api.site import ADMIN_TOKEN, Actor, Site, code_of, connected, listening, opened, until
from tests.support.forked import run_lethe

pytestmark = pytest.mark.anyio
eventually = partial(until, within_s=60.0)
REQUESTS = "/v1/erasure-requests"
LOG = "tombstones.jsonl"
Remedy = Callable[[Coordinator], Awaitable[object]]


async def erase(site: Site, name: str, **asked: object) -> dict[str, str]:
    body = {"federation_id": site.federation_id, "subjects": [name], **asked}
    filed = await site.admin.post(REQUESTS, body, headers={"Idempotency-Key": name}, expect=202)
    path = f"{REQUESTS}/{filed['id']}"
    await eventually(lambda: _is_completed(site.admin, path))
    await eventually(lambda: _is_noted(site.coordinator))
    found: dict[str, str] = await site.admin.get(path)
    return found


async def _is_completed(admin: Actor, path: str) -> bool:
    return bool((await admin.get(path))["status"] == "completed")


async def _is_noted(coordinator: Coordinator) -> bool:
    """Whether the database knows all entries of the log."""
    async with coordinator.database.read() as connection:
        mark = await known.mark(connection)
    return mark is not None and mark.num_tombstones == len(coordinator.tombstones.entries())


async def troubles(http: httpx.AsyncClient) -> str:
    """What `/readyz` says is wrong; nothing while it is ready."""
    response = await http.get("/readyz")
    found = [said for said in response.json()["checks"].values() if said != "ok"]
    assert (response.status_code == 200) == (not found)
    return "; ".join(found)


def empty(evidence: Path) -> None:
    (evidence / LOG).write_bytes(b"")


def remove(evidence: Path) -> None:
    (evidence / LOG).unlink()


def shorten(evidence: Path) -> None:
    lines = (evidence / LOG).read_bytes().splitlines(keepends=True)
    (evidence / LOG).write_bytes(b"".join(lines[:-1]))


def replace(evidence: Path) -> None:
    """By a log of another installation, with as many entries."""
    entries = FileTombstoneLog(evidence / LOG).entries()
    (evidence / LOG).unlink()
    other = FileTombstoneLog(evidence / LOG)
    for entry in entries:
        other.append(entry.model_copy(update={"federation_id": entry.request_id}))


def damage(evidence: Path) -> None:
    (evidence / LOG).write_bytes((evidence / LOG).read_bytes().replace(b'"scope":"client"', b'"scope":"samples"', 1))


def lose_key(evidence: Path) -> None:
    (evidence / SIGNING_KEY).unlink()


def change_key(evidence: Path) -> None:
    (evidence / SIGNING_KEY).unlink()
    save_key(evidence / SIGNING_KEY, generate_key())


async def accept_loss(coordinator: Coordinator) -> object:
    lists = TaintLists(coordinator.settings.evidence_path / TAINT)
    return await remedies.accept_loss(coordinator.database, coordinator.tombstones, lists)


async def rotate_lost(coordinator: Coordinator) -> object:
    return await remedies.rotate(coordinator.database, coordinator.signing_keys, is_lost=True)


HARMS: dict[str, tuple[Callable[[Path], None], str, Remedy, str]] = {
    "an emptied log": (empty, "has 0 of the 2 entries", accept_loss, remedies.TOMBSTONES_LOST),
    "a removed log": (remove, "has 0 of the 2 entries", accept_loss, remedies.TOMBSTONES_LOST),
    "a shortened log": (shorten, "has 1 of the 2 entries", accept_loss, remedies.TOMBSTONES_LOST),
    "a replaced log": (replace, "is not the one that the database knows", accept_loss, remedies.TOMBSTONES_LOST),
    "a damaged log": (damage, "was changed after it was written", accept_loss, remedies.TOMBSTONES_LOST),
    "a lost key": (lose_key, "is not in the directory of evidence", rotate_lost, remedies.KEY_LOST),
    "a changed key": (change_key, "is not the one on record", rotate_lost, remedies.KEY_LOST),
}
COMMANDS: dict[Remedy, str] = {accept_loss: "lethe evidence accept-loss", rotate_lost: "lethe keys rotate --lost"}


@contextlib.asynccontextmanager
async def another(site: Site) -> AsyncIterator[Coordinator]:
    """As the command opens it, in a process of its own."""
    coordinator = Coordinator(site.coordinator.settings)
    try:
        yield coordinator
    finally:
        await coordinator.database.close()


@pytest.mark.parametrize(
    ("database_url", "harm"),
    [*(("sqlite", harm) for harm in HARMS), ("postgres", "a shortened log"), ("postgres", "a lost key")],
    indirect=["database_url"],
)
async def test_lost_evidence_is_not_ready_until_an_operator_accepts_it(site: Site, harm: str) -> None:
    inflict, said, remedy, kind = HARMS[harm]
    (a, *_) = await site.enrol("a", "b", "c", "d")
    await erase(site, "a")
    await erase(site, "b")
    key = (await site.admin.get("/v1/erasure/discovery"))["public_key"]
    certificates = [await _certificate(site, one["id"]) for one in (await site.admin.get(REQUESTS))["items"]]
    inflict(site.coordinator.settings.evidence_path)
    site.coordinator.bus.wake([EVIDENCE])
    await eventually(lambda: _says(site, said))
    assert COMMANDS[remedy] in await troubles(site.http)
    for path in ("/v1/runs", REQUESTS, "/v1/erasure/discovery"):
        response = await site.admin.call("GET", path)
        assert (response.status_code, code_of(response)) == (503, "not-ready")
        assert said in response.json()["detail"] and response.headers["retry-after"]
    assert code_of(await a.call("POST", "/v1/tasks/claim")) == "not-ready"

    async with another(site) as coordinator:
        await remedy(coordinator)
    await eventually(lambda: _is_ready(site))
    async with site.coordinator.database.read() as connection:
        (incident,) = await known.incidents(connection)
        assert incident.kind == kind
        assert await known.incidents(connection, since=incident.at) == [incident]
    assert len({entry.request_id for entry in site.coordinator.tombstones.entries()} & await _requests(site)) == 2
    await erase(site, "c")
    keys = (await site.admin.get("/v1/erasure/discovery"))["public_key"]
    certificates += [await _certificate(site, one["id"]) for one in (await site.admin.get(REQUESTS))["items"]]
    assert all(check(one, keys.encode()).valid for one in certificates)
    assert (keys == key) == (remedy is accept_loss)


async def test_entries_that_are_written_again_say_all_that_was_asked_for(site: Site) -> None:
    """So that a request is carried out as it was filed, should the database be restored from before it."""
    a, *_ = await site.enrol("a", "b")
    run_id = (await site.start_run("tiny", clients=["a"]))["id"]
    await a.train(1.0)
    await eventually(lambda: _has_ended(site, run_id))
    await erase(site, "a", ground="withdrawal", regulation="Art. 17 of ours", method="retrain", recovery_rounds=2)
    await erase(site, "b")
    before = {entry.request_id: entry for entry in site.coordinator.tombstones.entries()}
    lists = TaintLists(site.coordinator.settings.evidence_path / TAINT)
    listed = {one: lists.read(one) for one in before}
    remove(site.coordinator.settings.evidence_path)
    shutil.rmtree(site.coordinator.settings.evidence_path / TAINT)
    async with another(site) as coordinator:
        await accept_loss(coordinator)
        after = {entry.request_id: entry for entry in coordinator.tombstones.entries()}
    for one, said in listed.items():
        again = lists.read(one)
        assert said is not None and again is not None
        assert (again.federation_id, again.models, again.updates) == (said.federation_id, said.models, said.updates)
    assert any(said is not None and said.models and said.updates for said in listed.values())
    assert {entry.filed_as.recovery_rounds for entry in before.values() if entry.filed_as is not None} == {2, None}
    same = {"at", "cohorts"}
    assert {one: entry.model_dump(exclude=same) for one, entry in after.items()} == {
        one: entry.model_dump(exclude=same) for one, entry in before.items()
    }
    places = [{(c.run_id, c.cohort_id) for e in found.values() for c in e.cohorts} for found in (before, after)]
    assert places[0] == places[1] and {str(place[0]) for place in places[0]} == {run_id}


async def _has_ended(site: Site, run_id: str) -> bool:
    return bool((await site.admin.get(f"/v1/runs/{run_id}"))["status"] == "completed")


async def _requests(site: Site) -> set[object]:
    async with site.coordinator.database.read() as connection:
        return set(await known.fenced_requests(connection))


async def _certificate(site: Site, erasure_id: str) -> bytes:
    return (await site.admin.call("GET", f"{REQUESTS}/{erasure_id}/certificate")).content


async def _says(site: Site, said: str) -> bool:
    return said in await troubles(site.http)


async def _is_ready(site: Site) -> bool:
    return not await troubles(site.http)


@pytest.mark.parametrize("harm", ["an emptied log", "a lost key"])
async def test_a_coordinator_does_not_start_on_lost_evidence(tmp_path: Path, harm: str) -> None:
    inflict, said, remedy, _ = HARMS[harm]
    home = tmp_path / "home"
    async with opened(home, None) as site:
        await site.enrol("a", "b", "c")
        await erase(site, "a")
        await erase(site, "b")
    inflict(home / "evidence")
    app = create_app(Coordinator(Settings(home=home, admin_token=SecretStr(ADMIN_TOKEN))))
    async with app.router.lifespan_context(app), connected(app) as http:
        assert said in await troubles(http) and COMMANDS[remedy] in await troubles(http)
        assert (await Actor(http, ADMIN_TOKEN).call("GET", "/v1/runs")).status_code == 503
        async with another(site) as coordinator:
            await remedy(coordinator)
        await eventually(lambda: _is_well(http))


async def _is_well(http: httpx.AsyncClient) -> bool:
    return not await troubles(http)


async def test_evidence_that_comes_back_needs_no_operator(site: Site) -> None:
    await site.enrol("a", "b")
    await erase(site, "a")
    evidence = site.coordinator.settings.evidence_path
    evidence.rename(evidence.with_name("away"))  # and an empty directory, as where nothing is mounted
    evidence.mkdir()
    site.coordinator.bus.wake([EVIDENCE])
    await eventually(lambda: _says(site, "lost for good"))
    assert not list(evidence.glob("*"))
    evidence.rmdir()
    evidence.with_name("away").rename(evidence)
    await eventually(lambda: _is_ready(site))
    async with site.coordinator.database.read() as connection:
        assert await known.incidents(connection) == []


async def test_a_replica_with_a_directory_of_its_own_is_not_ready(site: Site, tmp_path: Path) -> None:
    settings = site.coordinator.settings
    other = Coordinator(settings.model_copy(update={"evidence_dir": tmp_path / "own"}))
    app = create_app(other)
    async with app.router.lifespan_context(app), connected(app) as http:
        assert "another replica" in await troubles(http) or "not in the directory" in await troubles(http)
    assert await _is_ready(site)


async def test_a_planned_rotation_keeps_old_certificates_valid_and_is_no_disturbance(site: Site) -> None:
    await site.enrol("a", "b", "c")
    first = await erase(site, "a")
    before = await site.admin.get("/v1/erasure/discovery")
    async with another(site) as coordinator:
        key, incident = await remedies.rotate(coordinator.database, coordinator.signing_keys, is_lost=False)
        with pytest.raises(remedies.NotNeeded, match="without --lost"):
            await rotate_lost(coordinator)
    second = await erase(site, "b")
    after = await site.admin.get("/v1/erasure/discovery")
    assert incident.kind == "signing-key-rotated"
    assert after["key_id"] == key.key_id and after["public_key"].endswith(before["public_key"])
    assert check(await _certificate(site, first["id"]), after["public_key"].encode()).valid
    assert check(await _certificate(site, second["id"]), after["public_key"].encode()).valid
    assert not check(await _certificate(site, second["id"]), before["public_key"].encode()).valid
    assert await _is_ready(site)


async def test_a_database_from_before_a_rotation_takes_the_new_key_and_says_so(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with opened(home, None) as site:
        await site.enrol("a", "b")
    backup = (home / "lethe.db").read_bytes()
    async with another(site) as coordinator:
        key, _ = await remedies.rotate(coordinator.database, coordinator.signing_keys, is_lost=False)
    (home / "lethe.db").write_bytes(backup)
    async with opened(home, None, "again") as site:
        assert (await site.admin.get("/v1/erasure/discovery"))["key_id"] == key.key_id
        async with site.coordinator.database.read() as connection:
            (incident,) = await known.incidents(connection)
        assert key.key_id in incident.explanation


@pytest.mark.parametrize("step", ["prepared", "recorded"])
async def test_a_rotation_that_was_cut_off_is_finished_or_forgotten(tmp_path: Path, step: str) -> None:
    home = tmp_path / "home"
    async with opened(home, None) as site:
        before = (await site.admin.get("/v1/erasure/discovery"))["key_id"]
    async with another(site) as coordinator:
        new = await _prepare(coordinator, is_recorded=step == "recorded")
    async with opened(home, None, "again") as site:
        found = (await site.admin.get("/v1/erasure/discovery"))["key_id"]
        assert found == (new if step == "recorded" else before)
        published = home / "evidence" / PUBLIC_KEYS
        assert len(list(published.iterdir())) == (2 if step == "recorded" else 1)


async def _prepare(coordinator: Coordinator, *, is_recorded: bool) -> str:
    key = coordinator.signing_keys.prepare()
    if is_recorded:
        async with coordinator.database.write() as connection:
            await known.record_signing_keys(connection, [key], await coordinator.database.now(connection))
    return key.key_id


async def test_every_key_that_signed_is_told_to_anybody_with_its_time(site: Site, tmp_path: Path) -> None:
    """`lethe verify` without a key verifies certificates from before and after a rotation."""
    await site.enrol("a", "b", "c")
    first = await erase(site, "a")
    (only,) = (await site.http.get("/v1/keys")).json()
    assert only["until"] is None and only["algorithm"] == "ed25519"
    async with another(site) as coordinator:
        key, _ = await remedies.rotate(coordinator.database, coordinator.signing_keys, is_lost=False)
    second = await erase(site, "b")
    old, new = (await site.http.get("/v1/keys")).json()
    assert old["key_id"] == only["key_id"] and old["until"] == new["from"] > old["from"]
    assert new["key_id"] == key.key_id and new["until"] is None
    async with listening(site) as (host, port):
        for place, request in enumerate((first, second)):
            certificate = tmp_path / f"{place}.json"
            certificate.write_bytes(await _certificate(site, request["id"]))
            verify = ("--url", f"http://{host}:{port}", "verify", str(certificate))
            done = await asyncio.to_thread(run_lethe, *verify)
            assert done.returncode == 3, done.stderr  # the signature holds; the list is not at hand
            assert "ok    signature" in done.stdout and "2 keys" in done.stderr
