"""`lethe verify --replay` against a real server: the served models are computed again from the surviving updates."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from lethe import Client
from lethe.replaying import ReplayOutcome, replay_served
from services.audit.verification import check
from tests.integration.api.site import ADMIN_TOKEN, Site, has_been_retained, listening, until
from tests.integration.api.test_erasure_over_http import (
    NAMES,
    REQUESTS,
    TREE,
    checkpoints,
    completed,
    file,
    run_to_its_end,
    working,
)
from tests.support.forked import run_lethe

pytestmark = pytest.mark.anyio
CLUSTERS = {"kind": "clusters", "num_clusters": 2, "assignment": "random"}


async def erased(site: Site, **changes: Any) -> tuple[Any, bytes, bytes]:
    """A run after the erasure of b: (run, certificate, public key)."""
    agents = await site.enrol(*NAMES)
    async with working(agents):
        run = await run_to_its_end(site, **changes)
        filed = await file(site.admin, "b", federation_id=site.federation_id, recovery_rounds=1)
        await completed(site.admin, filed.json()["id"])
    certificate = await site.admin.call("GET", f"{REQUESTS}/{filed.json()['id']}/certificate")
    key = (await site.admin.get("/v1/erasure/discovery"))["public_key"]
    return run, certificate.content, key.encode()


async def replayed(site: Site, certificate: bytes, key: bytes) -> ReplayOutcome:
    statement = check(certificate, key).statement
    assert statement is not None
    async with listening(site) as (host, port):
        with Client(f"http://{host}:{port}", ADMIN_TOKEN) as client:
            return await asyncio.to_thread(replay_served, client, statement, lambda text: None)


@pytest.mark.parametrize(
    "topology",
    [{"kind": "flat"}, TREE, CLUSTERS, {**CLUSTERS, "merge": "ensemble"}, {**CLUSTERS, "merge": "best"}],
    ids=["flat", "tree", "clusters", "ensemble", "best"],
)
async def test_every_step_behind_the_served_models_is_reproduced(small_site: Site, topology: Any) -> None:
    _, certificate, key = await erased(small_site, topology=topology)
    statement = check(certificate, key).statement
    assert statement is not None
    outcome = await replayed(small_site, certificate, key)
    assert outcome.passed, outcome.why_not
    assert outcome.verdict == "full"
    assert outcome.report.total == statement.predicate.replayable.num_steps


async def test_a_changed_byte_in_a_stored_update_fails_the_replay(small_site: Site) -> None:
    run, certificate, key = await erased(small_site)
    (head,) = [one for one in await checkpoints(small_site, run) if one["is_head"]]
    lineage = await small_site.admin.get(f"/v1/checkpoints/{head['id']}/lineage")
    digest = lineage["contributions"][0]["digest"]
    found = await small_site.coordinator.storage.find(UUID(small_site.federation_id), [digest])
    (stored,) = small_site.coordinator.settings.blob_path.rglob(found[digest].id.hex)
    data = bytearray(stored.read_bytes())
    data[-1] ^= 1
    stored.chmod(0o600)
    stored.write_bytes(data)
    outcome = await replayed(small_site, certificate, key)
    assert not outcome.passed
    assert f"the stored bytes of {digest} have changed" in outcome.why_not


async def test_a_replay_of_nothing_fails(small_site: Site) -> None:
    _, certificate, key = await erased(small_site, retention={"updates": "none"})
    statement = check(certificate, key).statement
    assert statement is not None
    assert statement.predicate.replayable.extent == "none", "retention may be behind, the certificate must know"
    await until(lambda: has_been_retained(small_site))
    outcome = await replayed(small_site, certificate, key)
    assert (outcome.passed, outcome.verdict, outcome.report.replayed) == (False, "none", 0)
    assert "none of" in outcome.why_not


async def test_the_command_verifies_and_replays(small_site: Site, tmp_path: Path) -> None:
    _, certificate, key = await erased(small_site)
    (tmp_path / "pub.pem").write_bytes(key)
    async with listening(small_site) as (host, port):
        site = ("--url", f"http://{host}:{port}", "--token", ADMIN_TOKEN)

        async def lethe(*arguments: str) -> subprocess.CompletedProcess[str]:
            return await asyncio.to_thread(run_lethe, *site, *arguments, cwd=tmp_path, timeout=60)

        assert (await lethe("certificates", "get", "b", "-o", "certificate.json")).returncode == 0
        assert (await lethe("certificates", "opening", "b", "-o", "opening.json")).returncode == 0
        about = ("--client", "b", "--opening", "opening.json")
        done = await lethe("verify", "certificate.json", "--key", "pub.pem", "--replay", "--json", *about)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "certificate.json").read_bytes() == certificate
    document = json.loads(done.stdout)
    assert document["valid"] and document["replay"]["verdict"] == "full" and document["replay"]["replayed"] > 0
