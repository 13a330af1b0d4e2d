"""The dashboard as files: what is sent, how it is cached, and which addresses are not its."""

from __future__ import annotations

import re

import pytest

from tests.integration.api.site import Site

pytestmark = pytest.mark.anyio
BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


async def test_the_page_loads_everything_from_here_under_a_strict_policy(small_site: Site) -> None:
    page = await small_site.http.get("/", headers=BROWSER)
    assert page.status_code == 200 and page.headers["cache-control"] == "no-cache"
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    text = page.text.replace("http://www.w3.org/2000/svg", "")  # the name of a format, which nobody fetches
    assert "http://" not in text and "https://" not in text
    assert not re.findall(r"<script(?![^>]*\bsrc=)|<style|\bstyle=", page.text), "the policy allows nothing inline"
    linked = re.findall(r'(?:src|href)="(/[^"]+)"', page.text)
    assert any(address.endswith(".js") for address in linked)
    for address in linked:
        if address.startswith("/assets/"):
            sent = await small_site.http.get(address)
            assert sent.status_code == 200 and "immutable" in sent.headers["cache-control"], address


@pytest.mark.parametrize("encoding", ["br", "gzip", "identity"])
async def test_files_are_sent_as_the_browser_takes_them(small_site: Site, encoding: str) -> None:
    page = await small_site.http.get("/", headers=BROWSER)
    (script,) = re.findall(r'<script[^>]* src="([^"]+)"', page.text)
    async with small_site.http.stream("GET", script, headers={"Accept-Encoding": encoding}) as sent:
        content = b"".join([part async for part in sent.aiter_raw()])
    assert sent.headers.get("content-encoding", "identity") == encoding and sent.headers["vary"] == "Accept-Encoding"
    assert sent.headers["content-type"].startswith("text/javascript")
    assert (b"import" in content) == (encoding == "identity")


async def test_every_address_of_a_person_is_the_page(small_site: Site) -> None:
    for address in ("/requests/new", "/runs/01890a5d-ac96-774b-bcce-b302099a8057", "/hand-over", "/no/such/page"):
        page = await small_site.http.get(address, headers=BROWSER)
        assert page.status_code == 200 and "<div id=" in page.text, address


async def test_what_is_not_its_stays_a_problem(small_site: Site) -> None:
    for address in ("/v1/nowhere", "/docs/nowhere", "/metrics/nowhere"):
        answer = await small_site.http.get(address, headers=BROWSER)
        assert answer.status_code == 404 and answer.json()["code"] == "not-found", address
    assert (await small_site.http.get("/nowhere")).status_code == 404, "a program gets no page"
    assert (await small_site.http.get("/v1/tasks/claim", headers=BROWSER)).status_code == 405
    for name in ("nowhere.js", "index.html", "..%2Fapp.py", "web.py"):
        assert (await small_site.http.get(f"/assets/{name}")).status_code == 404, name
