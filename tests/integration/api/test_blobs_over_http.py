"""Uploads for tasks, those that break and go on, downloads in part, a full store."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from safetensors.numpy import save

from coordinator.blobs.port import StorageFull
from coordinator.runtime.sweeping import sweep_uploads
from coordinator.store import blobs as rows
from coordinator.store.faults import RolledBack
from services.core import digests
from tests.integration.api.site import Actor, Site, blob, code_of, has_been_retained, until, update

pytestmark = pytest.mark.anyio
BIG = save({"x": np.arange(400_000, dtype=np.float32)})
DIGEST = digests.of_bytes(BIG)
PATH = f"/v1/blobs/{DIGEST}"


async def patch(actor: Actor, offset: int, data: bytes, total: int = len(BIG)) -> Any:
    headers = {
        "Content-Type": "application/partial-upload",
        "Upload-Offset": str(offset),
        "Upload-Length": str(total),
    }
    return await actor.call("PATCH", PATH, content=data, headers=headers)


async def cut_short(actor: Actor, data: bytes) -> None:
    """Announces all of BIG and disconnects after `data`."""
    app: Any = actor.http._transport.app  # type: ignore[attr-defined]
    incoming = [{"type": "http.request", "body": data, "more_body": True}, {"type": "http.disconnect"}]
    headers = {"authorization": f"Bearer {actor.token}", "content-length": str(len(BIG))}

    async def receive() -> Any:
        return incoming.pop(0)

    async def send(message: Any) -> None:
        pass

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "PUT",
        "path": PATH,
        "raw_path": PATH.encode(),
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    await app(scope, receive, send)


async def test_a_client_uploads_for_the_task_that_it_holds_and_for_no_other(site: Site) -> None:
    """The header may be left out by who holds one task, as agents of earlier releases do."""
    a, b = await site.enrol("a", "b")
    digest, data = blob(update(1.0))
    path = f"/v1/blobs/{digest}"

    async def put(actor: Actor, task_id: str | None = None) -> Any:
        return await actor.call("PUT", path, content=data, headers={} if task_id is None else {"Lethe-Task": task_id})

    idle = await put(a)
    assert (idle.status_code, code_of(idle)) == (409, "no-task") and "claim one" in idle.json()["detail"]
    await site.start_run("one")
    assert code_of(await put(a)) == "no-task", "its task waits, but it does not hold it"
    (first,), (others,) = await a.claim(), await b.claim()
    assert code_of(await put(a, others["task_id"])) == "no-task"
    assert (await put(a)).status_code == 201
    await site.start_run("two")
    (second,) = await a.claim()
    several = await put(a)
    assert (several.status_code, code_of(several)) == (409, "no-task")
    assert "Lethe-Task" in several.json()["detail"]
    missing = await a.submit(second, digest)
    assert (missing.status_code, code_of(missing)) == (409, "blob-missing"), "it was sent for the other task"
    assert (await put(a, second["task_id"])).status_code == 201
    for task in (first, second):
        assert (await a.submit(task, digest)).status_code == 200
    assert code_of(await b.submit(others, digest)) == "blob-missing", "a digest is a name, never a permission"
    answered = await put(a, first["task_id"])
    assert code_of(answered) == "no-task" and "claim again" in answered.json()["detail"]


def handing_in(task: Any, **changes: Any) -> dict[str, str]:
    """Headers of an upload that is submitted with it."""
    result = {"lease_token": task["lease_token"], "num_samples": 10, "metrics": {"loss": 0.5}, **changes}
    return {"Lethe-Task": task["task_id"], "Lethe-Result": json.dumps(result)}


async def test_an_update_is_uploaded_and_handed_in_by_one_request(site: Site) -> None:
    """Sent twice, also by both ways of uploading, it counts once."""
    a, b = await site.enrol("a", "b")
    await site.start_run(stop={"rounds": 2})
    (task,), (others,) = await a.claim(), await b.claim()
    digest, data = blob(update(1.0))
    path = f"/v1/blobs/{digest}"
    first = await a.call("PUT", path, content=data, headers=handing_in(task))
    assert first.status_code == 201, first.text
    submission = first.json()["submission"]
    assert submission["status"] == "accepted"
    for headers in (handing_in(task), {**handing_in(task), "Expect": "100-continue"}):
        again = await a.call("PUT", path, content=data, headers=headers)
        assert (again.status_code, again.json()["submission"]) == (200, submission)
    assert (await a.submit(task, digest)).json() == submission
    assert (await b.call("PUT", path, content=data, headers=handing_in(others, update=digest))).status_code == 201
    assert [(await actor.claim())[0]["round"] for actor in (a, b)] == [2, 2]


async def test_what_is_handed_in_with_an_upload_is_refused_as_if_it_came_alone(site: Site) -> None:
    (a,) = await site.enrol("a")
    await site.start_run()
    (task,) = await a.claim()
    digest, data = blob(update(1.0))

    async def put(headers: dict[str, str], name: str = digest, content: bytes = data) -> Any:
        return await a.call("PUT", f"/v1/blobs/{name}", content=content, headers=headers)

    without_task = {"Lethe-Result": handing_in(task)["Lethe-Result"]}
    for headers, code, text in (
        (without_task, "invalid-result", "Lethe-Task"),
        (handing_in(task, update="sha256:" + "0" * 64), "invalid-result", "another update"),
        (handing_in(task, metrics={"a\0": 1.0}), "invalid-result", "NUL"),
        (handing_in(task, num_samples=0), "invalid-request", "num_samples"),
        ({**handing_in(task), "Lethe-Result": "{"}, "invalid-request", "Lethe-Result"),
        ({**handing_in(task), "Lethe-Result": "x" * 5000}, "invalid-request", "ethe-"),
    ):
        refused = await put(headers)
        assert (refused.status_code, code_of(refused)) == (422, code), refused.text
        assert text in refused.text
    assert (await a.call("HEAD", f"/v1/blobs/{digest}")).status_code == 404, "nothing was stored"
    lost = await put(handing_in(task, lease_token="another"))
    assert (lost.status_code, code_of(lost)) == (409, "lease-lost")
    bad, content = blob({name: value * np.nan for name, value in update(1.0).items()})
    assert code_of(await put(handing_in(task), bad, content)) == "not-finite"
    other, _ = blob(update(2.0))
    assert code_of(await put(handing_in(task), other, content)) == "digest-mismatch"
    assert (await put(handing_in(task))).status_code == 201, "none of it was held against the task"


async def test_an_operator_hands_in_nothing(site: Site) -> None:
    (a,) = await site.enrol("a")
    await site.start_run()
    (task,) = await a.claim()
    digest, data = blob(update(1.0))
    params = {"federation_id": site.federation_id}
    answer = await site.admin.call("PUT", f"/v1/blobs/{digest}", content=data, headers=handing_in(task), params=params)
    assert (answer.status_code, code_of(answer)) == (422, "invalid-result")


async def test_parts_of_an_upload_belong_to_their_task(site: Site) -> None:
    (a,) = await site.enrol("a")
    for key in ("one", "two"):
        await site.start_run(key)
    first, second = [{"Lethe-Task": task["task_id"]} for _ in range(2) for task in await a.claim()]
    part = {"Content-Type": "application/partial-upload", "Upload-Offset": "0", "Upload-Length": str(len(BIG))}
    assert code_of(await a.call("PATCH", PATH, content=BIG[:5000], headers=part)) == "no-task"
    assert (await a.call("PATCH", PATH, content=BIG[:5000], headers={**part, **first})).status_code == 204
    assert (await a.call("HEAD", PATH, headers=first)).headers["upload-offset"] == "5000"
    assert (await a.call("HEAD", PATH, headers=second)).status_code == 404
    rest = {**part, "Upload-Offset": "5000", "Content-Type": "application/octet-stream"}
    refused = await a.call("PATCH", PATH, content=BIG[5000:], headers={**rest, **second})
    assert (code_of(refused), refused.headers["upload-offset"]) == ("upload-offset-mismatch", "0")
    assert (await a.call("PATCH", PATH, content=BIG[5000:], headers={**rest, **first})).status_code == 201
    assert (await a.call("HEAD", PATH, headers=first)).status_code == 200
    assert (await a.call("HEAD", PATH, headers=second)).status_code == 404


async def test_a_blob_is_stored_once_and_read_back(site: Site) -> None:
    (a,) = await site.holders("a")
    assert (await a.call("HEAD", PATH)).status_code == 404
    first = await a.call("PUT", PATH, content=BIG)
    assert (first.status_code, first.json()) == (201, {"digest": DIGEST, "bytes": len(BIG), "submission": None})
    assert (await a.call("PUT", PATH, content=BIG)).status_code == 200
    head = await a.call("HEAD", PATH)
    assert head.status_code == 200
    assert head.headers["content-length"] == str(len(BIG))
    assert (head.headers["etag"], head.headers["upload-complete"]) == (f'"{DIGEST}"', "?1")
    got = await a.call("GET", PATH)
    assert got.content == BIG
    assert got.headers["cache-control"] == "private, immutable"


async def test_a_stored_blob_is_answered_without_reading_its_body(small_site: Site) -> None:
    (a,) = await small_site.holders("a")
    await a.call("PUT", PATH, content=BIG)

    was_read = False

    async def body() -> AsyncIterator[bytes]:
        nonlocal was_read
        was_read = True
        yield BIG

    headers = {"Content-Length": str(len(BIG))}
    assert (await a.call("PUT", PATH, content=body(), headers=headers)).status_code == 200
    assert not was_read


@pytest.mark.parametrize("num_floats", [400_000, 4], ids=["large", "small"])
@pytest.mark.parametrize("headers", [{}, {"Expect": "100-continue"}], ids=["plain", "expect"])
async def test_no_answer_tells_whether_another_client_has_sent_a_digest(
    site: Site, num_floats: int, headers: dict[str, str]
) -> None:
    """Neither before the body is read, nor after bytes that do not fit, nor after the right ones."""
    a, b = await site.holders("a", "b")
    sent, unsent = (save({"x": np.full(num_floats, value, dtype=np.float32)}) for value in (1, 2))
    assert (await a.call("PUT", f"/v1/blobs/{digests.of_bytes(sent)}", content=sent)).status_code == 201

    async def answers(right: bytes) -> list[object]:
        path, garbage = f"/v1/blobs/{digests.of_bytes(right)}", bytes(len(right))
        part = {"Content-Type": "application/partial-upload", "Upload-Offset": "0", "Upload-Length": str(len(right))}
        tries = [
            await b.call("HEAD", path),
            await b.call("PATCH", path, content=right[:50], headers={**part, **headers}),
            await b.call("PUT", path, content=garbage, headers=headers),
            await b.call("PUT", path, content=garbage, headers=headers),
            await b.call("GET", path),
            await b.call("PUT", path, content=right, headers=headers),
        ]
        return [(one.status_code, one.headers.get("upload-offset")) for one in tries]

    assert await answers(sent) == await answers(unsent)


async def test_a_cut_upload_keeps_what_arrived_and_goes_on_from_there(site: Site) -> None:
    (a,) = await site.holders("a")
    half = len(BIG) // 2
    await cut_short(a, BIG[:half])
    head = await a.call("HEAD", PATH)
    assert (head.status_code, head.headers["upload-complete"]) == (204, "?0")
    offset = int(head.headers["upload-offset"])
    assert offset == half
    wrong = await patch(a, offset + 1, BIG[offset + 1 :])
    assert (wrong.status_code, code_of(wrong)) == (409, "upload-offset-mismatch")
    assert wrong.headers["upload-offset"] == str(half)
    more = await patch(a, offset, BIG[offset : offset + 1000])
    assert (more.status_code, more.headers["upload-offset"]) == (204, str(offset + 1000))
    last = await patch(a, offset + 1000, BIG[offset + 1000 :])
    assert (last.status_code, last.json()["bytes"]) == (201, len(BIG))
    assert (await a.call("GET", PATH)).content == BIG


@pytest.mark.parametrize("num_floats", [400_000, 1000], ids=["large", "small"])
async def test_a_whole_upload_after_a_cut_one_is_taken(site: Site, num_floats: int) -> None:
    (a,) = await site.holders("a")
    data = save({"x": np.arange(num_floats, dtype=np.float32)})
    path = f"/v1/blobs/{digests.of_bytes(data)}"
    part = {"Content-Type": "application/partial-upload", "Upload-Offset": "0", "Upload-Length": str(len(data))}
    assert (await a.call("PATCH", path, content=data[:700], headers=part)).status_code == 204
    assert (await a.call("PUT", path, content=data)).status_code == 201
    assert (await a.call("GET", path)).content == data


@pytest.mark.parametrize("num_floats", [400_000, 1000], ids=["large", "small"])
async def test_a_whole_upload_after_a_damaged_part_succeeds_when_repeated(small_site: Site, num_floats: int) -> None:
    (a,) = await small_site.holders("a")
    data = save({"x": np.arange(num_floats, dtype=np.float32)})
    path = f"/v1/blobs/{digests.of_bytes(data)}"
    part = {"Content-Type": "application/partial-upload", "Upload-Offset": "0", "Upload-Length": str(len(data))}
    assert (await a.call("PATCH", path, content=data[:600] + b"\1" * 100, headers=part)).status_code == 204
    refused = await a.call("PUT", path, content=data)
    assert (code_of(refused), refused.headers["upload-offset"]) == ("upload-offset-mismatch", "0")
    assert (await a.call("PUT", path, content=data)).status_code == 201


async def test_an_upload_that_is_given_up_before_its_record_is_to_be_repeated(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    (a,) = await site.holders("a")
    receiver = site.coordinator.receiver
    receive = receiver.receive

    async def receive_and_sweep(*arguments: Any) -> Any:
        received = await receive(*arguments)
        assert await sweep_uploads(site.coordinator.database, site.coordinator.storage, timedelta(0)) == 1
        return received

    digest, data = blob(update(1.0))
    with monkeypatch.context() as patched:
        patched.setattr(receiver, "receive", receive_and_sweep)
        refused = await a.call("PUT", f"/v1/blobs/{digest}", content=data)
    assert (refused.status_code, code_of(refused)) == (409, "upload-offset-mismatch")
    assert refused.headers["upload-offset"] == "0"
    assert (await a.call("PUT", f"/v1/blobs/{digest}", content=data)).status_code == 201
    assert (await a.call("GET", f"/v1/blobs/{digest}")).content == data


async def test_retention_takes_the_bytes_of_one_task_and_not_equal_ones_of_another(site: Site) -> None:
    (a,) = await site.enrol("a")
    run = await site.start_run(retention={"updates": "none"})
    await a.train(1.0)
    await site.start_run("two")
    (task,) = await a.claim()
    digest = await a.put_blob(update(1.0), task)

    async def has_ended() -> bool:
        return (await site.admin.get(f"/v1/runs/{run['id']}"))["status"] == "completed"  # type: ignore[no-any-return]

    await until(has_ended)
    await until(lambda: has_been_retained(site))
    models = (await site.admin.get(f"/v1/runs/{run['id']}/checkpoints"))["items"]
    (made,) = [one for one in models if one["round"] == 1]
    lineage = await site.admin.get(f"/v1/checkpoints/{made['id']}/lineage")
    assert [(one["digest"], one["stored"]) for one in lineage["contributions"]] == [(digest, False)]
    assert (await a.call("HEAD", f"/v1/blobs/{digest}")).status_code == 200
    assert (await a.submit(task, digest)).status_code == 200


async def test_unfinished_uploads_of_two_clients_do_not_mix(small_site: Site) -> None:
    a, b = await small_site.holders("a", "b")
    await cut_short(a, BIG[:1000])
    assert (await b.call("HEAD", PATH)).status_code == 404
    assert (await b.call("PUT", PATH, content=BIG)).status_code == 201
    assert (await patch(a, 1000, BIG[1000:])).status_code == 201


async def test_a_part_needs_its_own_media_type_and_its_headers(small_site: Site) -> None:
    (a,) = await small_site.holders("a")
    headers = {"Content-Type": "application/json", "Upload-Offset": "0", "Upload-Length": "10"}
    response = await a.call("PATCH", PATH, content=b"x", headers=headers)
    assert (response.status_code, code_of(response)) == (415, "unsupported-media-type")
    headers = {"Content-Type": "application/partial-upload", "Upload-Offset": "0"}
    assert code_of(await a.call("PATCH", PATH, content=b"x", headers=headers)) == "invalid-request"
    assert code_of(await patch(a, 0, b"x", total=2**62)) == "too-large"
    assert code_of(await patch(a, 5, b"x")) == "upload-offset-mismatch"


@pytest.mark.parametrize("tensors", [400_000, 100], ids=["streamed", "from-memory"])
async def test_a_download_may_be_in_ranges(small_site: Site, tensors: int) -> None:
    data = save({"x": np.arange(tensors, dtype=np.float32)})
    path, size = f"/v1/blobs/{digests.of_bytes(data)}", len(data)
    (a,) = await small_site.holders("a")
    await a.call("PUT", path, content=data)
    for header, start, end in (
        ("bytes=0-9", 0, 10),
        ("bytes=10-", 10, size),
        ("bytes=-7", size - 7, size),
        (f"bytes=5-{10 * size}", 5, size),
    ):
        part = await a.call("GET", path, headers={"Range": header})
        assert (part.status_code, part.content) == (206, data[start:end])
        assert part.headers["content-range"] == f"bytes {start}-{end - 1}/{size}"
    beyond = await a.call("GET", path, headers={"Range": f"bytes={size}-"})
    assert (beyond.status_code, code_of(beyond)) == (416, "range-not-satisfiable")
    assert beyond.headers["content-range"] == f"bytes */{size}"
    for ignored in ("bytes=5-2", "lines=1-2", "bytes=0-1,3-4"):
        assert (await a.call("GET", path, headers={"Range": ignored})).content == data
    changed = await a.call("GET", path, headers={"Range": "bytes=0-9", "If-Range": '"other"'})
    assert changed.content == data


async def test_a_blob_that_the_caller_has_is_not_sent_again(small_site: Site) -> None:
    (a,) = await small_site.holders("a")
    await a.call("PUT", PATH, content=BIG)
    response = await a.call("GET", PATH, headers={"If-None-Match": f'"{DIGEST}"'})
    assert (response.status_code, response.content) == (304, b"")


async def test_the_installations_admin_names_the_federation_of_a_blob(small_site: Site) -> None:
    assert code_of(await small_site.admin.call("PUT", PATH, content=BIG)) == "invalid-request"
    nobody = "00000000-0000-7000-8000-000000000000"
    response = await small_site.admin.call("PUT", f"{PATH}?federation_id={nobody}", content=BIG)
    assert code_of(response) == "not-found"
    stored = await small_site.admin.call("PUT", f"{PATH}?federation_id={small_site.federation_id}", content=BIG)
    assert stored.status_code == 201


async def test_a_full_store_pauses_the_run_with_a_visible_reason_until_there_is_room(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    (a,) = await site.enrol("a")
    run = await site.start_run()
    (task,) = await a.claim()
    digest, data = blob(update(1.0))

    def full(*_: Any) -> None:
        raise StorageFull(28, "no space is left")

    with monkeypatch.context() as patched:
        patched.setattr(site.coordinator.blobs, "_check_reserve", full)
        response = await a.call("PUT", f"/v1/blobs/{digest}", content=data)
        assert (response.status_code, code_of(response)) == (507, "storage-full")
        assert response.headers["retry-after"] == "5" and response.json()["retryable"]
        paused = await site.admin.get(f"/v1/runs/{run['id']}")
        assert paused["status"] == "paused" and "no space is left" in paused["reason"]

    async def is_resumed() -> bool:
        return (await site.admin.get(f"/v1/runs/{run['id']}"))["status"] == "running"  # type: ignore[no-any-return]

    await until(is_resumed)
    assert (await a.submit(task, await a.put_blob(update(1.0)))).status_code == 200


async def test_an_announcement_that_the_database_takes_back_is_made_again(
    small_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    (a,) = await small_site.holders("a")
    announce, taken_back = rows.announce, [RolledBack("deadlock detected"), RolledBack("deadlock detected")]

    async def announce_later(*arguments: Any) -> set[UUID]:
        if taken_back:
            raise taken_back.pop()
        return await announce(*arguments)

    monkeypatch.setattr(rows, "announce", announce_later)
    data = save({"x": np.ones(3, np.float32)})
    assert (await a.call("PUT", f"/v1/blobs/{digests.of_bytes(data)}", content=data)).status_code == 201
    assert not taken_back
