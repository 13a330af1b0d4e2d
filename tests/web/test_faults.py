"""What goes wrong while a page is open, and what the page makes of it."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from playwright.sync_api import Page, expect

from tests.web.conftest import World, sign_in

OpenPage = Callable[..., Page]
HTML = "<img src=x onerror=document.title='broken'>"


def test_a_coordinator_that_restarts_is_found_again(world: World, open_page: OpenPage) -> None:
    page = open_page(world.people["Dr. Weber"], "/")
    expect(page.locator(".liveness")).to_contain_text("Live")
    world.deployment.processes["coordinator"].end(signal.SIGKILL)
    expect(page.get_by_text("Reconnecting")).to_be_visible()
    expect(page.get_by_role("heading", name="Inbox")).to_be_visible()
    world.deployment.restart("coordinator")
    expect(page.locator(".liveness")).to_contain_text("Live", timeout=60_000)
    world.file("clinic-e", world.people["Ms. Huber"], needs_approval=True, external_ref="after the restart")
    expect(page.get_by_role("link", name="after the restart")).to_be_visible()


def test_a_session_that_ends_keeps_what_was_typed(world: World, open_page: OpenPage) -> None:
    page = open_page(world.people["Dr. Weber"], "/requests/new")
    page.get_by_label("Client", exact=True).fill("clinic-d")
    page.get_by_label("Client", exact=True).press("Enter")
    page.get_by_label("Note").fill("A long note.")
    page.context.clear_cookies()
    page.get_by_role("button", name="Show what it takes").click()
    dialog = page.get_by_role("dialog", name="Your session has ended")
    expect(dialog).to_be_visible()
    sign_in(page, world.people["Dr. Weber"])
    expect(dialog).to_have_count(0)
    expect(page.get_by_label("Note")).to_have_value("A long note.")
    page.get_by_role("button", name="Show what it takes").click()
    expect(page.get_by_text("recommended")).to_be_visible()


def test_a_request_that_changed_meanwhile_is_not_decided_blindly(world: World, open_page: OpenPage) -> None:
    ours, theirs = world.people["Dr. Weber"], world.people["Ms. Huber"]
    request = world.file("clinic-d", ours, needs_approval=True)
    page = open_page(theirs, "/")
    page.route("**/events/stream*", lambda route: route.abort())
    page.goto(f"/requests/{request}")
    approve = page.get_by_role("button", name=re.compile("^Approve"))
    expect(approve).to_be_visible()
    tried: list[str] = []
    page.on("request", lambda request: tried.append(request.url) if request.method == "POST" else None)
    stale = f"**/v1/erasure-requests/{request}"
    page.route(stale, lambda route: route.continue_() if tried else route.abort())
    world.call("POST", f"/v1/erasure-requests/{request}/cancel", ours)
    approve.click()
    expect(page.get_by_text("It changed while you looked at it, and nothing was done")).to_be_visible()
    expect(page.get_by_text("Status: awaiting_approval → cancelled")).to_be_visible()
    expect(approve).to_have_count(0)


def test_names_with_html_are_text(world: World, open_page: OpenPage) -> None:
    body = {"role": "viewer", "label": HTML}
    token = world.call("POST", f"/v1/federations/{world.federation_id}/credentials", json=body)["token"]
    page = open_page(token, "/")
    expect(page.get_by_text(HTML)).to_be_visible()
    assert page.title() == "Inbox · Lethe" and page.locator("main img").count() == 0


def test_a_locale_that_libraries_do_not_know_breaks_nothing(world: World, open_page: OpenPage) -> None:
    page = open_page(None, "about:blank")
    page.add_init_script("Object.defineProperty(navigator, 'language', {value: 'en-US@posix', configurable: true})")
    page.goto(f"/runs/{world.runs['tree']}")
    sign_in(page, world.people["Research"])
    expect(page.get_by_role("img", name=re.compile("^Accuracy:"))).to_be_visible()


def test_a_stranger_and_a_wrong_role_are_told_what_to_do(world: World, open_page: OpenPage) -> None:
    page = open_page(world.people["Research"], "/requests")
    expect(page.get_by_role("link", name="New request")).to_have_count(0)
    page.goto("/runs/01890a5d-ac96-774b-bcce-b302099a8057")
    expect(page.get_by_role("alert")).to_contain_text("01890a5d-ac96-774b-bcce-b302099a8057")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_a_stream_that_breaks_goes_on_behind_the_last_event(world: World, open_page: OpenPage) -> None:
    page = open_page(world.people["Dr. Weber"], "/")
    stream = "**/events/stream*"
    page.route(stream, lambda route: route.abort())
    page.reload()
    expect(page.get_by_text("Reconnecting")).to_be_visible()
    expect(page.get_by_role("heading", name="Open requests by deadline")).to_be_visible()
    page.unroute(stream)
    broken = 'id: 7\ndata: {"type": "RunPaused"}\n\nid: 8\nda'
    page.route(stream, lambda route: route.fulfill(body=broken, content_type="text/event-stream"), times=1)
    with page.expect_request(lambda one: one.headers.get("last-event-id") == "7"):
        pass
    expect(page.locator(".liveness")).to_contain_text("Live")


def test_answers_of_503_leave_the_page_as_it_was_and_are_asked_for_again(world: World, open_page: OpenPage) -> None:
    page = open_page(world.people["Operations"], "/workers")
    expect(page.get_by_role("link", name="clinic-a")).to_be_visible()
    problem = {"type": "about:blank", "title": "Not ready", "status": 503, "code": "not-ready", "detail": "Starting."}
    page.route("**/v1/**", lambda route: route.fulfill(status=503, json=problem))
    is_refused = lambda one: "/v1/runs?" in one.url and one.status == 503  # noqa: E731
    for _ in range(2):
        with page.expect_response(is_refused):
            page.get_by_role("link", name="Runs", exact=True).click()
    page.get_by_role("link", name="Workers", exact=True).click()
    expect(page.get_by_role("link", name="clinic-a")).to_be_visible()
    page.get_by_role("link", name="Runs", exact=True).click()
    page.unroute("**/v1/**")
    expect(page.get_by_role("link", name="tree", exact=True)).to_be_visible()


def test_a_clock_that_is_off_changes_no_times(world: World, open_page: OpenPage) -> None:
    for days in (-400, 3):
        page = open_page(None, "about:blank")
        page.clock.set_system_time(datetime.now(UTC) + timedelta(days=days))
        page.goto("/workers")
        sign_in(page, world.people["Operations"])
        row = page.get_by_role("row", name=re.compile("^clinic-a "))
        expect(row).to_contain_text(re.compile(r"just now|\d s ago"))
        expect(row).not_to_contain_text("days ago")
