"""Workers are told which models in their caches are superseded, drop them and say so; who does not is counted."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import structlog

from coordinator.store import tables as t
from coordinator.store import worker_caches
from services.audit.certificate import verify_bytes
from services.audit.predicate import Statement
from services.wire.v1.superseded_models import SUPERSEDED_HEADER
from tests.integration.api.site import Actor, Site, code_of, listening, opened, until
from tests.integration.api.test_sample_erasure_with_workers import run_to_its_end, write_data
from tests.support.serving import served
from worker.agent import Ending

pytestmark = pytest.mark.anyio
REQUESTS, SUPERSEDED = "/v1/erasure-requests", "/v1/superseded-models"


async def erase(site: Site, name: str, **changes: Any) -> str:
    body = {"subjects": [name], "federation_id": site.federation_id, **changes}
    request = await site.admin.post(REQUESTS, body, expect=202, headers={"Idempotency-Key": f"erase {name}"})
    return str(request["id"])


async def reached(site: Site, erasure_id: str, status: str) -> None:
    async def is_reached() -> bool:
        found = await site.admin.get(f"{REQUESTS}/{erasure_id}")
        return found["fenced_at"] is not None if status == "fenced" else bool(found["status"] == status)

    await until(is_reached, within_s=60)


def forget_tokens(site: Site) -> None:
    """Two seconds have passed."""
    site.app.state.context.authenticator._known.clear()


async def superseded_digests(site: Site) -> set[str]:
    async with site.coordinator.database.read() as connection:
        rows = (await connection.execute(t.checkpoints.select())).all()
    return {row.digest for row in rows if row.superseded_by} - {row.digest for row in rows if not row.superseded_by}


async def confirmed(site: Site, erasure_id: str) -> dict[str, bool]:
    async with site.coordinator.database.read() as connection:
        return {one.name: one.is_confirmed for one in await worker_caches.of_request(connection, UUID(erasure_id))}


async def caches_of(site: Site, erasure_id: str) -> dict[str, int]:
    """What the certificate says of workers' caches: how many of each disposition."""
    envelope = (await site.admin.call("GET", f"{REQUESTS}/{erasure_id}/certificate")).content
    statement = verify_bytes(envelope, [site.coordinator.signing_keys.load().public_key()])
    assert isinstance(statement, Statement)
    return {
        str(kind): count for kind, count in statement.predicate.artefacts.kinds["worker-cache"].dispositions.items()
    }


async def round_by_hand(*agents: Actor) -> None:
    for value, agent in enumerate(agents, start=1):
        await agent.train(float(value))


async def test_a_worker_is_told_which_models_to_drop_until_it_says_that_it_did(site: Site) -> None:
    a, b, c, stranger = await site.enrol("a", "b", "c", "stranger")
    await site.start_run(stop={"rounds": 2}, clients=["a", "b", "c"])
    for _ in range(2):
        await round_by_hand(a, b, c)
    assert SUPERSEDED_HEADER not in (await a.call("POST", "/v1/tasks/claim")).headers
    erasure_id = await erase(site, "c")
    await reached(site, erasure_id, "fenced")

    async def is_told() -> bool:
        return (await a.get(SUPERSEDED))["through"] is not None

    await until(is_told)
    forget_tokens(site)
    told = await a.call("POST", "/v1/tasks/claim")
    stated = await a.get(SUPERSEDED)
    assert told.headers[SUPERSEDED_HEADER] == stated["through"].replace("Z", "+00:00")
    assert set(stated["digests"]) == await superseded_digests(site) != set()
    assert (await stranger.get(SUPERSEDED)) == {"through": None, "digests": []}
    assert SUPERSEDED_HEADER not in (await stranger.call("POST", "/v1/tasks/claim")).headers
    assert await confirmed(site, erasure_id) == {"a": False, "b": False, "c": False}
    said = await a.call("PUT", f"{SUPERSEDED}/dropped", json={"through": stated["through"]})
    assert said.status_code == 200, said.text
    assert await confirmed(site, erasure_id) == {"a": True, "b": False, "c": False}
    forget_tokens(site)
    assert (await a.get(SUPERSEDED))["digests"] == []
    assert code_of(await c.call("GET", SUPERSEDED)) == "client-erased"
    # What is not asked yet cannot be confirmed, and a new session has to confirm again.
    await b.call("PUT", f"{SUPERSEDED}/dropped", json={"through": "2999-01-01T00:00:00Z"})
    assert not (await confirmed(site, erasure_id))["b"]
    session = await a.call("POST", "/v1/sessions", json={"agent_version": "x", "protocol": 1})
    assert session.headers[SUPERSEDED_HEADER] == told.headers[SUPERSEDED_HEADER]
    assert not (await confirmed(site, erasure_id))["a"]


async def test_an_agent_that_knows_nothing_of_it_goes_on_and_counts_as_unconfirmed(site: Site) -> None:
    a, b = await site.enrol("a", "b")
    await site.start_run(stop={"rounds": 1}, training={"algorithm": "fedavg", "quorum": 1})
    await round_by_hand(a, b)
    erasure_id = await erase(site, "b", method="retrain")
    await reached(site, erasure_id, "fenced")
    await round_by_hand(a)
    await reached(site, erasure_id, "completed")
    assert await caches_of(site, erasure_id) == {"unconfirmed": 2}


def cached(directory: Path) -> set[str]:
    return {"sha256:" + path.name.partition(".")[0] for path in directory.iterdir()}


async def test_real_workers_drop_superseded_models_and_the_leavers_says_that_it_was_erased(
    tmp_path: Path,
) -> None:
    async with (
        opened(tmp_path / "home", None, max_wait_s=1.0) as site,
        listening(site) as (host, port),
        contextlib.AsyncExitStack() as stack,
    ):
        agents = dict(zip("abc", await site.enrol("a", "b", "c"), strict=True))
        url, caches_of = f"http://{host}:{port}", dict[str, Path]()
        for seed, (name, agent) in enumerate(agents.items()):
            ending = Ending.STOPPED if name == "c" else Ending.DONE
            data = write_data(tmp_path / f"{name}.npz", seed)
            options = await stack.enter_async_context(served(url, agent.token, data, tmp_path / name, ending))
            caches_of[name] = options.cache_dir
        await run_to_its_end(site, "one")
        assert all(map(cached, caches_of.values()))
        with structlog.testing.capture_logs() as logs:
            erasure_id = await erase(site, "c", method="retrain")
            await reached(site, erasure_id, "completed")

            async def have_followed() -> bool:
                return await confirmed(site, erasure_id) == {"a": True, "b": True, "c": False}

            await until(have_followed, within_s=60)
            await until(lambda: any(one["event"] == "agent.erased" for one in logs), within_s=60)
        superseded = await superseded_digests(site)
        assert superseded
        for name in "ab":
            assert not cached(caches_of[name]) & superseded
        assert cached(caches_of["c"]) == set()
        (said,) = [one for one in logs if one["event"] == "agent.erased"]
        assert f"this client was erased by request {erasure_id}; nothing more will be asked of it" in said["detail"]
