"""The feed of a federation: events of its runs and requests in one order that holds on every replica."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
from pydantic import SecretStr

from coordinator.api.app import create_app
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.settings import Settings
from coordinator.store.paging import Position
from tests.integration.api.site import ADMIN_TOKEN, Actor, Site, connected, listening, opened, until
from tests.integration.api.test_views import erased, is_over, trained

pytestmark = pytest.mark.anyio
JSON = {"Accept": "application/json"}


async def told(site: Site, **query: Any) -> list[dict[str, Any]]:
    """All pages."""
    found, cursor = [], None
    while True:
        page = await site.admin.get(
            f"/v1/federations/{site.federation_id}/events",
            params={**query, **({"cursor": cursor} if cursor else {})},
        )
        found += page["items"]
        cursor = page.get("next_cursor")
        if cursor is None:
            return found


async def journals(site: Site, run_ids: list[str], erasure_ids: list[str]) -> Counter[str]:
    """What the feed has to tell, from the journals themselves: what is in both is told once."""
    found: Counter[str] = Counter()
    in_requests: Counter[str] = Counter()
    for erasure_id in erasure_ids:
        path = f"/v1/erasure-requests/{erasure_id}/events?limit=200"
        for event in (await site.admin.get(path, headers=JSON))["items"]:
            in_requests[key_of(event)] += 1
    for run_id in run_ids:
        for event in (await site.admin.get(f"/v1/runs/{run_id}/events?limit=200", headers=JSON))["items"]:
            if not in_requests[key_of(event)]:
                found[key_of(event)] += 1
    return found + in_requests


def key_of(event: dict[str, Any]) -> str:
    return json.dumps([event["type"], event["at"], event["data"]], sort_keys=True)


async def test_the_feed_tells_every_event_once(site: Site) -> None:
    run_id, (_, *staying) = await trained(site, "a", "b", "c")
    early = await told(site, limit=3)
    erasure_id = await erased(site, "a", staying, rounds=2)
    events = await told(site, limit=7)
    numbered = [(event["seq"], event["at"], event["type"]) for event in events]
    assert numbered[: len(early)] == [(event["seq"], event["at"], event["type"]) for event in early]
    seqs = [event["seq"] for event in events]
    assert seqs == sorted(set(seqs))
    assert Counter(map(key_of, events)) == await journals(site, [run_id], [erasure_id])
    fenced = next(event for event in events if event["type"] == "LineFenced")
    assert (fenced["run_id"], fenced["erasure_id"]) == (run_id, erasure_id) and fenced["cohort_id"]
    assert await told(site, limit=5, newest_first=True) == events[::-1]
    assert await told(site, after=seqs[4]) == events[5:]


async def test_pages_that_hold_nothing_new_are_passed_over(site: Site) -> None:
    """What a run tells of a request alone makes no empty page."""
    run_id, (_, *staying) = await trained(site, "a", "b")
    await erased(site, "a", staying, rounds=2)
    page: dict[str, Any] = {"next_cursor": None}
    path = f"/v1/federations/{site.federation_id}/events?limit=1"
    while True:
        page = await site.admin.get(path + (f"&cursor={page['next_cursor']}" if page["next_cursor"] else ""))
        if page["next_cursor"] is None:
            break
        assert len(page["items"]) == 1
    assert run_id


async def test_replicas_that_number_events_at_the_same_instant_agree(tmp_path: Path, postgres_url: str) -> None:
    async with (
        opened(tmp_path / "one", postgres_url) as one,
        opened_beside(tmp_path / "one", postgres_url) as other,
    ):
        run_id, _ = await trained(one, "a", "b", rounds=3)
        feeds = [site.coordinator.feed for site in (one, other)]
        pages = await asyncio.gather(
            *(feed.page(UUID(one.federation_id), Position(200)) for feed in feeds for _ in range(5))
        )
        assert all(page == pages[0] for page in pages) and len(pages[0].items) > 10
        assert Counter(key_of(json.loads(event.model_dump_json())) for event in pages[0].items) == await journals(
            one, [run_id], []
        )


@contextlib.asynccontextmanager
async def opened_beside(home: Path, url: str) -> AsyncIterator[Site]:
    """A second replica on the same database and evidence."""
    settings = Settings(home=home, database_url=url, admin_token=SecretStr(ADMIN_TOKEN), blob_reserve_bytes=0)
    app = create_app(coordinator := Coordinator(settings))
    async with app.router.lifespan_context(app), connected(app) as http:
        yield Site(app, coordinator, http, Actor(http, ADMIN_TOKEN))


class Reader:
    """Reads the stream as a browser does: resumes behind the last id that it saw."""

    def __init__(self, site: Site, address: tuple[str, int], token: str = ADMIN_TOKEN) -> None:
        self._url = f"http://{address[0]}:{address[1]}/v1/federations/{site.federation_id}/events/stream"
        self._token = token
        self.last_id: str | None = None
        self.events: list[dict[str, Any]] = []

    async def read(self, most: int, after: int | None = None) -> None:
        """So many events, or to the end of the run or of the stream; then the connection is cut."""
        headers = {"Authorization": f"Bearer {self._token}"}
        if self.last_id is not None:
            headers["Last-Event-ID"] = self.last_id
        params = {} if after is None else {"after": after}
        num = 0
        async with (
            httpx.AsyncClient(timeout=20) as http,
            http.stream("GET", self._url, headers=headers, params=params) as response,
        ):
            assert response.status_code == 200, await response.aread()
            async for line in response.aiter_lines():
                if line.startswith("id: "):
                    self.last_id = line[4:]
                if line.startswith("data: "):
                    self.events.append(json.loads(line[6:]))
                    num += 1
                    if num == most or self.events[-1]["type"] == "RunEnded":
                        return


async def test_a_stream_that_is_cut_again_and_again_loses_and_repeats_nothing(site: Site) -> None:
    clients = await site.enrol("a", "b")
    async with listening(site) as address:
        reader = Reader(site, address)
        reading = asyncio.create_task(reader.read(1))
        await until(lambda: reader.last_id is not None)
        run = await site.start_run(stop={"rounds": 4})

        async def train() -> None:
            for _ in range(4):
                for client in clients:
                    await client.train(0.1)

        training = asyncio.create_task(train())
        await reading
        while not any(event["type"] == "RunEnded" for event in reader.events):
            await reader.read(3)
        await training
        await until(lambda: is_over(site, run["id"]))
    first = (await told(site, limit=1))[0]["seq"]
    assert reader.events == [event for event in await told(site) if event["seq"] >= first]
    assert Counter(map(key_of, reader.events)) == await journals(site, [run["id"]], [])


async def test_a_stream_begins_now_or_where_it_is_asked_to(site: Site) -> None:
    await trained(site, "a", rounds=1)
    events = await told(site)
    async with listening(site) as address:
        replay = Reader(site, address)
        await replay.read(len(events), after=0)
        assert replay.events == events
        live = Reader(site, address)
        reading = asyncio.create_task(live.read(1))
        await until(lambda: live.last_id is not None)
        assert live.last_id == str(events[-1]["seq"])
        await site.start_run("another")
        await reading
        assert live.events[0]["type"] == "RunCreated" and live.events[0]["seq"] > events[-1]["seq"]


async def test_a_stream_ends_when_its_credential_does(site: Site) -> None:
    viewer = await site.admin.post(f"/v1/federations/{site.federation_id}/credentials", {"role": "viewer"})
    async with listening(site) as address:
        reader = Reader(site, address, viewer["token"])
        reading = asyncio.create_task(reader.read(10**6))
        await until(lambda: reader.last_id is not None)
        await site.admin.call("DELETE", f"/v1/credentials/{viewer['id']}")
        (client,) = await site.enrol("a")
        await site.start_run()
        await client.claim()
        async with asyncio.timeout(15):
            await reading


async def test_a_bad_id_is_refused(site: Site) -> None:
    response = await site.admin.call(
        "GET", f"/v1/federations/{site.federation_id}/events/stream", headers={"Last-Event-ID": "yesterday"}
    )
    assert response.status_code == 422
