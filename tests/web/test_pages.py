"""Every page, full and empty, in both themes: it can be used without seeing it, and nothing is blocked or broken."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Page, expect

from tests.web.conftest import World

OpenPage = Callable[..., Page]
FULL = {
    "inbox": "/",
    "requests": "/requests",
    "new request": "/requests/new",
    "request": "/requests/{request}",
    "certificate": "/requests/{request}/certificate",
    "runs": "/runs",
    "curves": "/runs/{tree}",
    "curves over rounds": "/runs/{tree}?over=round",
    "grid": "/runs/{tree}?tab=grid",
    "tasks": "/runs/{tree}?tab=tasks",
    "models": "/runs/{tree}?tab=models",
    "events": "/runs/{tree}?tab=events",
    "cohorts": "/runs/{tree}/cohorts",
    "cohorts before": "/runs/{tree}/cohorts?at=before",
    "flat cohorts": "/runs/{flat}/cohorts",
    "clusters": "/runs/{clusters}/cohorts",
    "clusters before": "/runs/{clusters}/cohorts?at=before",
    "lineage": "/checkpoints/{checkpoint}",
    "workers": "/workers",
    "compare": "/compare?run={tree}&run={flat}",
    "clients": "/admin",
    "credentials": "/admin?tab=credentials",
    "federation": "/admin?tab=federation",
    "acts": "/admin?tab=acts",
    "incentives": "/admin?tab=incentives&federation={shared}",
    "keys": "/admin?tab=keys",
    "system": "/admin?tab=system",
    "verify": "/verify",
    "nowhere": "/no/such/page",
}
SCREENS = os.environ.get("LETHE_SCREENS")
"""Where to put a picture of every full page in both themes, to look at them or to take those of docs/screens anew."""
EMPTY = ("/", "/requests", "/requests/new", "/runs", "/workers", "/compare", "/admin", "/admin?tab=acts")


def check(page: Page) -> None:
    """`axe` finds nothing in either theme, and the page is not wider than its window."""
    for theme in ("Light", "Dark"):
        button = page.get_by_role("button", name=theme)
        if button.count():
            button.click()
        found = Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "it scrolls sideways"


def settled(page: Page) -> None:
    expect(page.locator("h1, .empty").first).to_be_visible()
    expect(page.get_by_text("Loading …")).to_have_count(0)


@pytest.mark.parametrize("name", FULL)
def test_a_full_page_can_be_used_by_everybody(
    world: World, places: dict[str, str], open_page: OpenPage, name: str
) -> None:
    page = open_page(world.admin_token)
    page.goto(FULL[name].format(**places))
    settled(page)
    for theme in ("light", "dark") if SCREENS else ():
        page.emulate_media(color_scheme=theme)
        page.screenshot(path=Path(SCREENS or "") / f"{name.replace(' ', '-')}-{theme}.png", full_page=True)
    check(page)
    assert not page.locator("main [role=alert]").count(), page.locator("main").inner_text()


def test_an_empty_federation_says_what_to_type_next(world: World, open_page: OpenPage) -> None:
    federation = world.call("POST", "/v1/federations", json={"name": "empty"})["id"]
    page = open_page(world.admin_token)
    for path in EMPTY:
        page.goto(f"{path}{'&' if '?' in path else '?'}federation={federation}")
        settled(page)
        check(page)
        if path not in ("/requests/new",):
            expect(page.get_by_text("lethe ").first).to_be_visible()


def test_the_page_to_sign_in_and_a_narrow_window(world: World, open_page: OpenPage) -> None:
    page = open_page(None, "/", viewport={"width": 390, "height": 800})
    settled(page)
    check(page)
    page.get_by_label("Token").fill("not-a-token")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_be_visible()


def test_the_first_view_is_small(world: World, open_page: OpenPage) -> None:
    page = open_page(None, "about:blank")
    sizes: list[int] = []
    page.on("requestfinished", lambda request: sizes.append(request.sizes()["responseBodySize"]))
    page.goto("/")
    settled(page)
    assert 0 < sum(sizes) <= 200_000


def test_it_works_by_keyboard(world: World, open_page: OpenPage) -> None:
    page = open_page(world.people["Operations"], f"/runs/{world.runs['tree']}")
    page.get_by_role("tab", name="Curves").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Clients × rounds")).to_be_focused()
    page.goto(f"/runs/{world.runs['tree']}/cohorts")
    node = page.locator("svg [role=button]").first
    node.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Members")).to_be_visible()
