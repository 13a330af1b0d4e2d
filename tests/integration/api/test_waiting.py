"""Long polls and event streams: nobody polls, nobody misses anything."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from coordinator.api import streaming
from tests.integration.api.site import Actor, Site, code_of, until

pytestmark = pytest.mark.anyio


def waiting_polls(site: Site) -> float:
    return site.app.state.context.metrics.waiting_polls._value.get()  # type: ignore[no-any-return]


async def until_waiting(site: Site, count: int) -> None:
    await until(lambda: waiting_polls(site) == count)


async def test_a_poll_without_work_answers_204_after_its_wait(small_site: Site) -> None:
    (a,) = await small_site.enrol("a")
    started_at = time.monotonic()
    response = await a.call("POST", "/v1/tasks/claim", headers={"Prefer": "wait=0.3"})
    assert (response.status_code, response.headers["preference-applied"]) == (204, "wait=0.3")
    assert 0.3 <= time.monotonic() - started_at < 2
    assert (await a.call("POST", "/v1/tasks/claim")).status_code == 204


async def test_the_wait_is_capped(small_site: Site) -> None:
    (a,) = await small_site.enrol("a")
    await small_site.start_run()
    response = await a.call("POST", "/v1/tasks/claim", headers={"Prefer": "respond-async, wait=9999"})
    assert (response.status_code, response.headers["preference-applied"]) == (200, "wait=25")


async def test_a_waiting_poll_is_woken_by_new_work(site: Site) -> None:
    a, b = await site.enrol("a", "b")
    polls = [asyncio.create_task(actor.claim(20)) for actor in (a, b)]
    await until_waiting(site, 2)
    started_at = time.monotonic()
    await site.start_run()
    grants = await asyncio.gather(*polls)
    assert time.monotonic() - started_at < 5
    assert [len(tasks) for tasks in grants] == [1, 1]
    assert waiting_polls(site) == 0


async def test_a_poller_that_went_away_is_given_nothing(small_site: Site) -> None:
    (a,) = await small_site.enrol("a")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "path": "/v1/tasks/claim",
        "raw_path": b"/v1/tasks/claim",
        "query_string": b"",
        "headers": [(b"authorization", f"Bearer {a.token}".encode()), (b"prefer", b"wait=20")],
    }
    gone = asyncio.Event()
    incoming = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Any:
        if incoming:
            return incoming.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        pass

    poll = asyncio.create_task(small_site.app(scope, receive, send))
    await until_waiting(small_site, 1)
    gone.set()
    await asyncio.wait_for(poll, 5)
    run = await small_site.start_run()
    (task,) = (await small_site.admin.get(f"/v1/runs/{run['id']}/tasks"))["items"]
    assert (task["status"], task["attempt"]) == ("ready", 0)


async def frames_of(actor: Actor, run_id: str, **headers: str) -> list[dict[str, str]]:
    response = await actor.call("GET", f"/v1/runs/{run_id}/events", headers=headers)
    assert response.headers["content-type"].startswith("text/event-stream"), response.text
    blocks = [block for block in response.text.split("\n\n") if block.startswith("id:")]
    return [dict(line.split(": ", 1) for line in block.split("\n")) for block in blocks]


async def test_a_stream_has_every_event_in_order_and_ends_with_the_run(site: Site) -> None:
    (a,) = await site.enrol("a")
    run = await site.start_run()
    stream = asyncio.create_task(frames_of(site.admin, run["id"]))
    await a.train(1.0)
    frames = await asyncio.wait_for(stream, 20)
    assert [int(frame["id"]) for frame in frames] == list(range(1, len(frames) + 1))
    types = [frame["event"] for frame in frames]
    wanted = ["RunCreated", "CohortFormed", "CheckpointPublished", "RoundOpened", "TaskLeased", "UpdateAccepted"]
    assert [kind for kind in types if kind in wanted][: len(wanted)] == wanted
    assert "RunEnded" in types
    assert all(json.loads(frame["data"])["run_id"] == run["id"] for frame in frames)


async def test_a_stream_resumes_after_the_last_event_seen(site: Site) -> None:
    await site.enrol("a")
    run = await site.start_run()
    await site.admin.post(f"/v1/runs/{run['id']}/cancel", expect=200)
    everything = await frames_of(site.admin, run["id"])
    resumed = await frames_of(site.admin, run["id"], **{"Last-Event-ID": everything[1]["id"]})
    assert resumed == everything[2:]
    done = await site.admin.call("GET", f"/v1/runs/{run['id']}/events", headers={"Last-Event-ID": everything[-1]["id"]})
    assert done.status_code == 204
    headers = {"Last-Event-ID": "the-third"}
    response = await site.admin.call("GET", f"/v1/runs/{run['id']}/events", headers=headers)
    assert code_of(response) == "invalid-request"


async def test_events_also_come_in_pages(site: Site) -> None:
    await site.enrol("a")
    run = await site.start_run()
    json_only = {"Accept": "application/json"}
    page = await site.admin.get(f"/v1/runs/{run['id']}/events?after=1&limit=2", headers=json_only)
    assert [event["seq"] for event in page["items"]] == [2, 3]
    more = await site.admin.get(f"/v1/runs/{run['id']}/events?cursor={page['next_cursor']}", headers=json_only)
    assert more["items"][0]["seq"] == 4


async def test_a_silent_stream_says_that_it_is_alive(small_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(streaming, "COMMENT_EVERY_S", 0.02)
    await small_site.enrol("a")
    run = await small_site.start_run()
    path = f"/v1/runs/{run['id']}"
    stream = asyncio.create_task(small_site.admin.call("GET", f"{path}/events"))
    await asyncio.sleep(0.2)
    await small_site.admin.post(f"{path}/cancel", expect=200)
    assert ": still here\n\n" in (await asyncio.wait_for(stream, 10)).text
