"""Handing a certificate over by a link: once, to whoever has its secret, and to nobody who only follows links."""

from __future__ import annotations

import asyncio
import io
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from coordinator.store import tables as t
from services.audit.verification import Beside, check
from tests.integration.api.site import Actor, Site, code_of, opened
from tests.integration.api.test_acts_over_http import acts, said
from tests.integration.api.test_certificates_over_http import erased
from tests.integration.api.test_erasure_over_http import file

pytestmark = pytest.mark.anyio


async def link(by: Actor, path: str, **query: Any) -> dict[str, Any]:
    return await by.post(f"{path}/hand-over", params=query)  # type: ignore[no-any-return]


async def opening(site: Site, made: dict[str, Any], secret: str | None = None) -> httpx.Response:
    body = {"secret": made["secret_shown_once"] if secret is None else secret}
    return await site.http.post(f"/v1/hand-overs/{made['id']}:open", json=body)


async def test_a_link_hands_everything_over_once(site: Site, capfd: pytest.CaptureFixture[str]) -> None:
    path = await erased(site, "b")
    officer = await site.staff("compliance")
    made = await link(officer, path)
    assert made["url"] == f"/hand-over#{made['id']}.{made['secret_shown_once']}"

    # A scanner that follows the link, asks for everything around it and guesses, spends nothing.
    for method in ("GET", "HEAD", "OPTIONS", "PUT"):
        for address in ("/hand-over", f"/v1/hand-overs/{made['id']}:open", f"/v1/hand-overs/{made['id']}"):
            await site.http.request(method, address)
    assert code_of(await opening(site, made, "a guess")) == "not-found"
    assert code_of(await opening(site, made, made["secret_shown_once"][:-1])) == "not-found"

    page = await site.http.get("/hand-over")
    assert page.status_code == 200 and made["id"] not in page.text
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "connect-src 'self'" in policy

    handed = await opening(site, made)
    assert handed.status_code == 200 and handed.headers["cache-control"] == "no-store"
    got = handed.json()
    assert got["certificate"].encode() == (await officer.call("GET", f"{path}/certificate")).content
    beside = Beside(list=io.BytesIO(got["artefacts"].encode()), opening=got["opening"].encode(), client="b")
    verdict = check(got["certificate"].encode(), got["public_key"].encode(), beside=beside)
    assert verdict.valid and verdict.complete, verdict.checks
    assert got["page"].startswith("<!DOCTYPE html>")

    again = await opening(site, made)
    assert code_of(again) == "already-spent" and again.status_code == 409
    assert code_of(await officer.call("DELETE", f"/v1/hand-overs/{made['id']}")) == "already-spent"
    (listed,) = (await officer.get(f"{path}/hand-overs"))["items"]
    assert listed["id"] == made["id"] and listed["opened_at"] is not None and "secret" not in str(listed)

    printed = "".join(capfd.readouterr())
    assert "handover.opened" in printed and made["secret_shown_once"] not in printed
    async with site.coordinator.database.read() as connection:
        (row,) = (await connection.execute(sa.select(t.hand_overs))).all()
    assert made["secret_shown_once"] not in str(row)
    told = await acts(site, 3, about=path.rpartition("/")[2])
    assert [one["entry"]["act"] for one in told] == ["erasure.filed", "handover.made", "handover.opened"]
    assert said(told[2], "who") == [{"name": "", "credential": made["id"], "from": ""}]


async def test_of_two_who_open_it_at_once_one_has_it(site: Site) -> None:
    made = await link(site.admin, await erased(site, "b"))
    answers = await asyncio.gather(*(opening(site, made) for _ in range(4)))
    assert sorted(one.status_code for one in answers) == [200, 409, 409, 409]


async def test_a_link_that_expired_or_was_revoked_opens_nothing(site: Site) -> None:
    path = await erased(site, "b")
    expired, revoked = await link(site.admin, path, days=1), await link(site.admin, path, days=90)
    async with site.coordinator.database.write() as connection:
        row = (await connection.execute(sa.select(t.hand_overs).order_by(t.hand_overs.c.id))).first()
        assert row is not None
        late = t.hand_overs.update().where(t.hand_overs.c.id == row.id)
        await connection.execute(late.values(expires_at=row.expires_at - timedelta(days=2)))
    over = await opening(site, expired)
    assert code_of(over) == "link-expired" and over.status_code == 410 and "expired" in over.json()["detail"]
    for _ in range(2):
        assert (await site.admin.call("DELETE", f"/v1/hand-overs/{revoked['id']}")).status_code == 204
    assert "revoked" in (await opening(site, revoked)).json()["detail"]


async def test_who_may_make_look_at_and_revoke_links(small_site: Site) -> None:
    path = await erased(small_site, "b")
    made = await link(small_site.admin, path)
    for role in ("viewer", "operator"):
        somebody = await small_site.staff(role)
        for method, address in (
            ("POST", f"{path}/hand-over"),
            ("GET", f"{path}/hand-overs"),
            ("DELETE", f"/v1/hand-overs/{made['id']}"),
        ):
            assert code_of(await somebody.call(method, address)) == "forbidden"
    elsewhere = await small_site.staff("compliance", await small_site.federation("oncology"))
    for method, address in (("POST", f"{path}/hand-over"), ("DELETE", f"/v1/hand-overs/{made['id']}")):
        assert code_of(await elsewhere.call(method, address)) == "not-found"
    assert code_of(await small_site.admin.call("POST", f"{path}/hand-over", params={"days": 91})) == "invalid-request"
    assert (await opening(small_site, made)).status_code == 200


async def test_before_there_is_a_certificate_there_is_nothing_to_hand_over(small_site: Site) -> None:
    await small_site.enrol("a", "b")
    filed = (await file(small_site.admin, "b", federation_id=small_site.federation_id, needs_approval=True)).json()
    refused = await small_site.admin.call("POST", f"/v1/erasure-requests/{filed['id']}/hand-over")
    assert code_of(refused) == "certificate-not-ready"


async def test_one_of_several_leavers_does_not_learn_of_the_others(small_site: Site) -> None:
    made = await link(small_site.admin, await erased(small_site, "b", "c"))
    got = (await opening(small_site, made)).json()
    assert got["opening"] is None and got["artefacts"] is not None


async def test_who_guesses_often_has_to_wait(tmp_path: Path) -> None:
    made = {"id": "00000000-0000-7000-8000-000000000000", "secret_shown_once": ""}
    async with opened(tmp_path, None, max_failed_logins_per_peer=0.001) as site:
        codes = [code_of(await opening(site, made, "a guess")) for _ in range(2)]
    assert codes == ["not-found", "too-many-requests"]
