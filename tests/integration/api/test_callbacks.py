"""Callbacks of requests to forget: every change arrives, signed, over failures and restarts, and only where allowed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from coordinator.engine.erasure import callbacks
from coordinator.store import tables as t
from tests.integration.api.site import Site, code_of, opened, until
from tests.support.federation import federation
from tests.support.receiver import receiving

pytestmark = pytest.mark.anyio
REQUESTS = "/v1/erasure-requests"
SECRET = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"


@pytest.fixture
async def open_site(tmp_path: Path) -> AsyncIterator[Site]:
    async with opened(tmp_path / "open", None, callback_hosts="hooks.example.org, 127.0.0.1") as site:
        yield site


async def file(site: Site, *callbacks: dict[str, Any], **changes: Any) -> httpx.Response:
    body = {"subjects": ["a"], "federation_id": site.federation_id, "callbacks": list(callbacks), **changes}
    return await site.admin.call("POST", REQUESTS, json=body, headers={"Idempotency-Key": "k"})


async def deliveries(site: Site, erasure_id: str) -> list[Any]:
    return (await site.admin.get(f"{REQUESTS}/{erasure_id}/deliveries"))["items"]  # type: ignore[no-any-return]


async def test_every_change_arrives_signed_and_numbered(open_site: Site) -> None:
    await open_site.enrol("a")
    with receiving() as shared, receiving() as public:
        filed = await file(open_site, {"url": shared.url, "secret": SECRET}, {"url": public.url})
        assert filed.status_code == 202, filed.text
        await until(lambda: all(r.posts and len(r.posts) >= 6 for r in (shared, public)), within_s=20)
    changes = sorted((post.json["data"]["seq"], post.json["type"]) for post in shared.posts)
    statuses = ("received", "fenced", "executing", "first_clean", "verifying", "completed")
    assert changes == [(seq, f"erasure.{status}") for seq, status in enumerate(statuses, start=1)]
    assert all(post.json["data"]["erasure_id"] == filed.json()["id"] for post in shared.posts)
    assert all(post.is_signed_with(SECRET) for post in shared.posts)
    assert not any(post.is_signed_with("whsec_" + "A" * 32) for post in shared.posts)
    key = load_pem_public_key((await open_site.admin.get("/v1/erasure/discovery"))["public_key"].encode())
    assert isinstance(key, Ed25519PublicKey)
    for post in public.posts:
        version, signature = post.signature
        assert version == "v1a"
        key.verify(signature, post.signed)

    async def are_settled() -> bool:  # a moment after the last post was answered
        return all(one["status"] != "pending" for one in await deliveries(open_site, filed.json()["id"]))

    await until(are_settled)
    found = await deliveries(open_site, filed.json()["id"])
    assert {(one["status"], one["attempts"], one["error"]) for one in found} == {("delivered", 1, None)}
    assert {one["id"] for one in found} == {post.headers["webhook-id"] for post in shared.posts + public.posts}
    assert SECRET not in str(found) + filed.text


async def test_a_delivery_is_tried_again_over_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callbacks, "PAUSES_S", (0.05,) * 8)
    with receiving(*[500] * 100) as receiver:
        async with federation(tmp_path, "a", callback_hosts="127.0.0.1") as f:
            callback = {"url": receiver.url, "secret": SECRET}
            await f.erase("a", callbacks=(callback,), needs_approval=True)
            await until(lambda: len(receiver.posts) >= 1)
        seen = len(receiver.posts)
        receiver.answers = [503]
        async with federation(tmp_path, "b", callback_hosts="127.0.0.1") as f:
            await until(lambda: len(receiver.posts) >= seen + 2)
            (delivery,) = await f.rows(t.deliveries)
            delivery = await f.wait(t.deliveries, delivery.id, lambda row: row.status == "delivered")
    assert delivery.attempts == len(receiver.posts) >= 3
    assert delivery.error is None and delivery.delivered_at is not None
    assert {post.headers["webhook-id"] for post in receiver.posts} == {str(delivery.id)}
    assert len({post.body for post in receiver.posts}) == 1
    assert all(post.is_signed_with(SECRET) for post in receiver.posts)


@pytest.mark.parametrize(("answer", "num_posts"), [(500, 3), (302, 3), (410, 1)])
async def test_attempts_are_bounded_and_redirects_are_not_followed(
    open_site: Site, monkeypatch: pytest.MonkeyPatch, answer: int, num_posts: int
) -> None:
    monkeypatch.setattr(callbacks, "PAUSES_S", (0.0, 0.0))
    await open_site.enrol("a")
    with receiving(*[answer] * 100) as receiver, receiving() as elsewhere:
        receiver.location = elsewhere.url
        filed = (await file(open_site, {"url": receiver.url}, needs_approval=True)).json()

        async def has_failed() -> bool:
            return [one["status"] for one in await deliveries(open_site, filed["id"])] == ["failed"]

        await until(has_failed)
    (given_up,) = await deliveries(open_site, filed["id"])
    assert (given_up["attempts"], given_up["error"], given_up["next_attempt_at"]) == (
        num_posts,
        f"answered {answer}",
        None,
    )
    assert (len(receiver.posts), elsewhere.posts) == (num_posts, [])


async def test_an_unreachable_receiver_holds_up_no_erasure(open_site: Site) -> None:
    await open_site.enrol("a")
    with receiving() as gone:
        pass
    filed = (await file(open_site, {"url": gone.url})).json()

    async def is_completed() -> bool:
        return (await open_site.admin.get(f"{REQUESTS}/{filed['id']}"))["status"] == "completed"  # type: ignore[no-any-return]

    await until(is_completed)
    first = (await deliveries(open_site, filed["id"]))[0]
    assert first["status"] == "pending" and first["next_attempt_at"] is not None


async def test_callbacks_are_refused_unless_the_operator_allows_their_host(small_site: Site, open_site: Site) -> None:
    for site in (small_site, open_site):
        await site.enrol("a")
    refused = await file(small_site, {"url": "https://hooks.example.org/x"})
    assert (refused.status_code, code_of(refused)) == (422, "callback-refused")
    assert "LETHE_CALLBACK_HOSTS" in refused.json()["detail"]
    for url in ("https://169.254.169.254/latest", "http://hooks.example.org.evil.example/x", "http://[::1]/x"):
        assert code_of(await file(open_site, {"url": url})) == "callback-refused", url
    for callback in (
        {"url": "ftp://hooks.example.org/x"},
        {"url": "http://hooks.example.org@evil.example/x"},
        {"url": "https://hooks.example.org/x", "secret": "hunter2"},
        {"url": "https://hooks.example.org/x", "secret": SECRET + "A"},
    ):
        assert code_of(await file(open_site, callback)) == "invalid-request", callback
    assert (await open_site.admin.get(REQUESTS))["items"] == (await small_site.admin.get(REQUESTS))["items"] == []


async def test_the_secret_of_a_callback_lies_readable_in_no_row_and_no_file(
    tmp_path: Path, database_url: str | None
) -> None:
    key = SECRET.removeprefix("whsec_")
    async with opened(tmp_path / "home", database_url, callback_hosts="127.0.0.1") as site:
        await site.enrol("a")
        with receiving() as receiver:
            filed = await file(site, {"url": receiver.url, "secret": SECRET})
            await until(lambda: len(receiver.posts) >= 6, within_s=20)
        assert all(post.is_signed_with(SECRET) for post in receiver.posts)
        async with site.coordinator.database.read() as connection:
            for table in t.metadata.sorted_tables:
                rows = (await connection.execute(table.select())).all()
                assert key not in str(rows), table.name
        shown = [filed.text, str(await site.admin.get(f"{REQUESTS}/{filed.json()['id']}"))]
        assert key not in str(shown) and "sealed:" not in str(shown)
    files = [path for path in (tmp_path / "home").rglob("*") if path.is_file()]
    assert not [path for path in files if key.encode() in path.read_bytes()]
    (kept,) = [path for path in files if path.name == "callback-key"]
    assert kept.stat().st_mode & 0o777 == 0o600


async def test_a_secret_that_an_older_release_stored_is_sealed_at_the_start_and_still_signs(
    tmp_path: Path, database_url: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callbacks, "PAUSES_S", (0.05,) * 8)
    settings: dict[str, Any] = {"url": database_url, "callback_hosts": "127.0.0.1", "kernel_lease_s": 1.0}
    with receiving(*[500] * 1000) as receiver:
        async with federation(tmp_path, "a", **settings) as f:
            plain = {"url": receiver.url, "secret": SECRET}
            await f.erase("a", callbacks=(plain, {"url": receiver.url, "secret": None}), needs_approval=True)
            assert SECRET in str(await f.rows(t.erasures))
            await until(lambda: len(receiver.posts) >= 1)
        receiver.answers = []
        async with federation(tmp_path, "b", **settings) as f:
            (request,) = await f.rows(t.erasures)
            assert SECRET not in str(request) and [one["url"] for one in request.callbacks] == [receiver.url] * 2
            assert request.callbacks[0]["secret"].startswith("sealed:") and request.callbacks[1]["secret"] is None
            for delivery in await f.rows(t.deliveries):
                await f.wait(t.deliveries, delivery.id, lambda row: row.status == "delivered")
    assert {post.signature[0] for post in receiver.posts} == {"v1", "v1a"}
    assert all(post.is_signed_with(SECRET) for post in receiver.posts if post.signature[0] == "v1")


async def test_a_delivery_whose_key_is_lost_says_so(open_site: Site, tmp_path: Path) -> None:
    await open_site.enrol("a")
    with receiving() as receiver:
        filed = (await file(open_site, {"url": receiver.url, "secret": SECRET}, needs_approval=True)).json()
        await until(lambda: len(receiver.posts) >= 1)
        (tmp_path / "open" / "evidence" / "callback-key").unlink()
        await open_site.admin.post(f"{REQUESTS}/{filed['id']}/approve", expect=200)

        async def says_why() -> bool:
            return any("key" in (one["error"] or "") for one in await deliveries(open_site, filed["id"]))

        await until(says_why)
    assert SECRET not in str(await deliveries(open_site, filed["id"]))
