"""Pages for people: they need nothing from elsewhere."""

from __future__ import annotations

import re

import pytest

from tests.integration.api.site import Site

pytestmark = pytest.mark.anyio


async def test_the_documentation_is_served_from_here_alone(small_site: Site) -> None:
    page = await small_site.http.get("/docs")
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    assert "http://" not in page.text and "https://" not in page.text
    assert "default-src 'self'" in page.headers["content-security-policy"]
    linked = re.findall(r'(?:src|href)="(/[^"]+)"', page.text)
    assert len(linked) == 4
    for address in linked:
        assert (await small_site.http.get(address)).status_code == 200, address
    script = await small_site.http.get("/docs/swagger-ui-bundle.js", headers={"Accept-Encoding": "identity"})
    assert "SwaggerUIBundle" in script.text and "content-encoding" not in script.headers


async def test_what_is_not_a_page_is_a_problem(small_site: Site) -> None:
    answer = await small_site.http.get("/docs/../../etc/passwd")
    assert answer.status_code == 404
    answer = await small_site.http.get("/docs/README.md")
    assert answer.status_code == 404 and answer.json()["code"] == "not-found"
