"""Signing in with a browser: cookies, the check against other sites' pages, and when a session ends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from coordinator.store import tables as t
from tests.integration.api.site import ADMIN_TOKEN, Site, code_of, connected, opened, until
from tests.integration.api.test_acts_over_http import acts, said

pytestmark = pytest.mark.anyio
SESSION = "/v1/browser-session"


class Browser:
    """Cookies of its own, and the script of a page that sends what the script can read."""

    def __init__(self, site: Site) -> None:
        self.http = connected(site.app)

    async def sign_in(self, token: str) -> httpx.Response:
        return await self.http.post(SESSION, json={"token": token})

    async def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        headers = {"X-CSRF-Token": self.http.cookies.get("lethe-csrf", ""), **options.pop("headers", {})}
        return await self.http.request(method, path, headers=headers, **options)


@pytest.fixture
async def browser(site: Site) -> AsyncIterator[Browser]:
    browser = Browser(site)
    yield browser
    await browser.http.aclose()


async def age(site: Site, **columns: timedelta) -> None:
    """Move instants of every session back, and have it read anew."""
    s = t.browser_sessions.c
    async with site.coordinator.database.write() as connection:
        for row in (await connection.execute(sa.select(t.browser_sessions))).all():
            values = {name: row._mapping[name] - back for name, back in columns.items()}
            await connection.execute(t.browser_sessions.update().where(s.id == row.id).values(values))
            site.app.state.context.authenticator.forget([row.credential_id])


async def test_a_token_is_exchanged_for_a_session_that_is_worth_as_much(site: Site, browser: Browser) -> None:
    officer = await site.staff("compliance")
    begun = await browser.sign_in(officer.token)
    assert begun.status_code == 201, begun.text
    me = begun.json()
    assert (me["role"], me["session"], me["federation_id"]) == ("compliance", True, site.federation_id)
    assert me["can"] == ["read", "file", "approve"] and me["expires_at"] is not None
    assert officer.token not in begun.text and begun.headers["cache-control"] == "no-store"
    session, csrf = begun.headers.get_list("set-cookie")
    assert session.startswith("lethe=") and "HttpOnly" in session and "SameSite=strict" in session
    assert csrf.startswith("lethe-csrf=") and "HttpOnly" not in csrf and "SameSite=strict" in csrf
    assert officer.token.split("_", 2)[2] not in session + csrf

    assert (await browser.call("GET", SESSION)).json() == me
    assert (await browser.call("GET", "/v1/erasure-requests")).status_code == 200
    assert code_of(await browser.call("POST", "/v1/federations", json={"name": "another"})) == "forbidden"
    assert (await browser.call("DELETE", SESSION)).status_code == 204
    assert not browser.http.cookies
    assert code_of(await browser.call("GET", SESSION)) == "unauthenticated"


async def test_over_tls_no_other_host_can_set_the_cookie(small_site: Site) -> None:
    transport = httpx.ASGITransport(small_site.app)
    async with httpx.AsyncClient(transport=transport, base_url="https://coordinator") as http:
        begun = await http.post(SESSION, json={"token": ADMIN_TOKEN})
        session, csrf = begun.headers.get_list("set-cookie")
        assert session.startswith("__Host-lethe=") and "Secure" in session and "Path=/" in session
        assert "Domain" not in session and "Secure" in csrf
        assert (await http.get(SESSION)).status_code == 200
        value = http.cookies["__Host-lethe"]
        http.cookies.clear()
        assert code_of(await http.get(SESSION, headers={"Cookie": f"lethe={value}"})) == "unauthenticated"


async def test_a_change_needs_what_only_a_page_of_this_installation_can_read(site: Site, browser: Browser) -> None:
    await browser.sign_in((await site.staff("operator")).token)
    path, body = f"/v1/federations/{site.federation_id}/clients", {"name": "a"}
    for shown in (b"", "ä".encode(), b"0" * 64):
        answer = await browser.http.post(path, json=body, headers={b"X-CSRF-Token": shown})
        assert code_of(answer) == "csrf-failed"
    assert code_of(await browser.http.post(path, json=body)) == "csrf-failed"
    other = Browser(site)
    await other.sign_in((await site.staff("operator")).token)
    of_another = {"X-CSRF-Token": other.http.cookies["lethe-csrf"]}
    assert code_of(await browser.http.post(path, json=body, headers=of_another)) == "csrf-failed"
    assert code_of(await browser.http.delete(SESSION)) == "csrf-failed"
    assert (await browser.call("POST", path, json=body)).status_code == 201
    await other.http.aclose()


async def test_a_cookie_that_the_quick_way_sees_is_checked_as_well(small_site: Site) -> None:
    (a,) = await small_site.enrol("a")
    browser = Browser(small_site)
    await browser.sign_in(a.token)
    assert code_of(await browser.http.post("/v1/tasks/claim")) == "csrf-failed"
    assert (await browser.call("POST", "/v1/tasks/claim")).status_code == 204
    await browser.http.aclose()


async def test_a_wrong_token_begins_nothing_and_is_told_nowhere(
    small_site: Site, capfd: pytest.CaptureFixture[str]
) -> None:
    browser = Browser(small_site)
    token = f"lethe_{'0' * 32}_a-secret-that-nobody-may-see"
    refused = await browser.sign_in(token)
    assert code_of(refused) == "unauthenticated" and "set-cookie" not in refused.headers
    malformed = await browser.http.post(SESSION, json={"token": [token]})
    assert code_of(malformed) == "invalid-request"
    assert code_of(await browser.http.post(SESSION, json={"token": token * 40})) == "too-large"
    assert code_of(await browser.http.post(SESSION, content="token=x")) == "unsupported-media-type"
    printed = "".join(capfd.readouterr())
    assert all(token not in text for text in (refused.text, malformed.text, printed))
    await browser.http.aclose()


async def test_no_secret_is_in_the_log_or_in_the_database(
    site: Site, browser: Browser, capfd: pytest.CaptureFixture[str]
) -> None:
    officer = await site.staff("compliance")
    await browser.sign_in(officer.token)
    cookie, csrf = browser.http.cookies["lethe"], browser.http.cookies["lethe-csrf"]
    await browser.call("GET", SESSION)
    await browser.http.delete(SESSION)
    async with site.coordinator.database.read() as connection:
        (row,) = (await connection.execute(sa.select(t.browser_sessions))).all()
    await browser.call("DELETE", SESSION)
    printed = "".join(capfd.readouterr())
    assert "session.begun" in printed and "session.ended" in printed
    for secret in (officer.token.split("_", 2)[2], cookie.partition(".")[2], csrf):
        assert secret not in printed and secret not in str(row)


async def test_a_session_that_idles_ends_and_one_in_use_does_not(site: Site, browser: Browser) -> None:
    await browser.sign_in(ADMIN_TOKEN)
    for _ in range(3):
        await age(site, seen_at=timedelta(minutes=50))
        assert (await browser.call("GET", SESSION)).status_code == 200
    await age(site, seen_at=timedelta(minutes=61))
    over = await browser.call("GET", "/v1/federations")
    assert code_of(over) == "session-ended" and over.status_code == 401
    assert "sign in again" in over.json()["detail"] and over.headers["www-authenticate"] == "Bearer"
    assert code_of(await browser.call("POST", "/v1/federations", json={"name": "late"})) == "session-ended"


async def test_a_session_in_use_ends_at_its_latest(site: Site, browser: Browser) -> None:
    await browser.sign_in(ADMIN_TOKEN)
    await age(site, created_at=timedelta(hours=13), ends_at=timedelta(hours=13))
    assert code_of(await browser.call("GET", SESSION)) == "session-ended"
    await browser.sign_in(ADMIN_TOKEN)
    async with site.coordinator.database.read() as connection:
        assert len((await connection.execute(sa.select(t.browser_sessions))).all()) == 1  # the old row went


async def test_a_session_that_was_begun_under_a_clock_ahead_is_over(site: Site, browser: Browser) -> None:
    """When the clock is right again it would last longer than any may."""
    await browser.sign_in(ADMIN_TOKEN)
    ahead = -timedelta(hours=30)
    await age(site, created_at=ahead, seen_at=ahead, ends_at=ahead)
    assert code_of(await browser.call("GET", SESSION)) == "session-ended"


async def test_a_session_ends_with_its_credential(site: Site, browser: Browser) -> None:
    issued = await site.admin.post(f"/v1/federations/{site.federation_id}/credentials", {"role": "viewer"})
    await browser.sign_in(issued["token"])
    assert (await browser.call("GET", "/v1/runs")).status_code == 200
    await site.admin.call("DELETE", f"/v1/credentials/{issued['id']}")
    assert code_of(await browser.call("GET", "/v1/runs")) == "session-ended"

    (a,) = await site.enrol("a")
    await browser.sign_in(a.token)
    await site.admin.post(f"/v1/clients/{a.client_id}/credentials")
    assert code_of(await browser.call("GET", SESSION)) == "session-ended"


async def test_an_id_that_somebody_chose_and_a_cookie_of_another_installation_are_worth_nothing(
    site: Site, browser: Browser, tmp_path: Path
) -> None:
    chosen = f"{'ab' * 16}.{'A' * 43}"
    browser.http.cookies.set("lethe", chosen)
    assert code_of(await browser.call("GET", SESSION)) == "session-ended"
    for nonsense in ("x", chosen + "x", "é", f"{'ab' * 16}."):
        shown = {b"Cookie": b"lethe=" + nonsense.encode("latin-1")}
        assert code_of(await site.http.get(SESSION, headers=shown)) == "session-ended"
    browser.http.cookies.clear()
    browser.http.cookies.set("lethe", chosen, domain="coordinator", path="/")
    await browser.sign_in(ADMIN_TOKEN)
    assert [one.value == chosen for one in browser.http.cookies.jar if one.name == "lethe"][-1] is False
    async with opened(tmp_path / "another", None) as another:
        elsewhere = Browser(another)
        await elsewhere.sign_in(ADMIN_TOKEN)
        shown = {b"Cookie": f"lethe={elsewhere.http.cookies['lethe']}".encode()}
        assert code_of(await site.http.get(SESSION, headers=shown)) == "session-ended"
        await elsewhere.http.aclose()


async def test_a_token_counts_where_both_are_sent(site: Site, browser: Browser) -> None:
    await browser.sign_in((await site.staff("viewer")).token)
    both = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
    assert (await browser.http.post("/v1/federations", json={"name": "another"}, headers=both)).status_code == 201
    assert code_of(await browser.http.get(SESSION, headers=both)) == "unauthenticated"
    assert code_of(await browser.http.get(SESSION, headers={"Authorization": "Bearer wrong"})) == "unauthenticated"


async def test_a_removed_client_cannot_sign_in(small_site: Site) -> None:
    (a,) = await small_site.enrol("a")
    await small_site.admin.call("DELETE", f"/v1/clients/{a.client_id}")
    refused = await small_site.http.post(SESSION, json={"token": a.token})
    assert code_of(refused) == "client-removed"


async def test_who_fails_often_has_to_wait(tmp_path: Path) -> None:
    async with opened(tmp_path, None, max_failed_logins_per_peer=0.001) as site:
        codes = [code_of(await site.http.post(SESSION, json={"token": "wrong"})) for _ in range(2)]
    assert codes == ["unauthenticated", "too-many-requests"]


async def test_signing_in_and_out_is_in_the_log_of_acts(site: Site, browser: Browser) -> None:
    officer = await site.staff("compliance")
    me = (await browser.sign_in(officer.token)).json()
    await browser.call("DELETE", SESSION)
    found = [one for one in await acts(site, 4) if one["entry"]["act"].startswith("session.")]
    assert [one["entry"]["act"] for one in found] == ["session.begun", "session.ended"]
    for one in found:
        assert one["entry"]["about"] == {"kind": "credential", "id": me["credential_id"]}
        (who,) = said(one, "who")
        assert who is not None and who["credential"] == me["credential_id"]


async def test_a_session_that_one_replica_began_is_known_to_the_other_and_ends_at_both(
    tmp_path: Path, postgres_url: str, redis_url: str
) -> None:
    async with (
        opened(tmp_path, postgres_url, redis_url=redis_url) as one,
        opened(tmp_path, postgres_url, redis_url=redis_url, federation="oncology") as other,
    ):
        here, there = Browser(one), Browser(other)
        await here.sign_in(ADMIN_TOKEN)
        there.http.cookies.update(here.http.cookies)
        assert (await there.call("GET", SESSION)).status_code == 200
        assert (await there.call("POST", "/v1/federations", json={"name": "third"})).status_code == 201
        assert (await here.call("DELETE", SESSION)).status_code == 204

        async def is_over() -> bool:
            answer = await there.call("GET", SESSION)
            return not answer.is_success and code_of(answer) == "session-ended"

        await until(is_over, within_s=1.5)  # sooner than the cache forgets by itself
        for browser in (here, there):
            await browser.http.aclose()
