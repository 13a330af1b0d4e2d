"""The ways of the operator, the data holder and the researcher in the browser."""

from __future__ import annotations

import re
from collections.abc import Callable

from playwright.sync_api import Page, expect

from tests.web.conftest import World

OpenPage = Callable[..., Page]


def test_the_operator_sees_why_a_run_waits_and_resumes_it(world: World, open_page: OpenPage) -> None:
    path = f"/v1/federations/{world.federation_id}/clients"
    token = world.call("POST", path, json={"name": "clinic-late"})["token"]
    world.start_run("stuck", topology={"kind": "flat"}, clients=["clinic-a", "clinic-late"], stop={"rounds": 2})
    page = open_page(world.people["Operations"], "/")
    expect(page.get_by_text("It waits for clinic-late: away")).to_be_visible()
    page.get_by_role("link", name="stuck", exact=True).click()
    expect(page.get_by_text("It waits for 1 worker that is away")).to_be_visible()
    expect(page.get_by_role("link", name="clinic-late")).to_be_visible()
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    world.deployment.start_fleet("late", {"clinic-late": token}, {"clinic-late": "builtin:digits#part=0/6,seed=0"})
    expect(page.locator(".page-head").get_by_text("Completed")).to_be_visible(timeout=120_000)
    page.get_by_role("tab", name="Clients × rounds").click()
    expect(page).to_have_url(re.compile("tab=grid"))
    expect(page.get_by_role("row", name=re.compile("clinic-late.*done"))).to_be_visible()
    page.get_by_role("tab", name="Tasks").click()
    page.get_by_role("button", name="Show").first.click()
    expect(page.get_by_text("The end of its log")).to_be_visible()
    page.get_by_role("button", name="Close").click()
    page.get_by_role("link", name="Cohorts").click()
    expect(page.get_by_role("heading", name=re.compile("Cohorts of stuck"))).to_be_visible()


def test_the_data_holder_joins_withdraws_and_gets_its_own_proof(world: World, open_page: OpenPage) -> None:
    operator = open_page(world.people["Operations"], "/admin")
    operator.get_by_label("Name of a new client").fill("clinic-new")
    operator.get_by_role("button", name="Enrol").click()
    token = operator.locator("dialog code").first.inner_text()
    expect(operator.get_by_text("--token-file clinic-new.token")).to_be_visible()
    operator.get_by_role("button", name="Close").click()
    world.deployment.start_fleet("new", {"clinic-new": token}, {"clinic-new": "builtin:digits#part=1/6,seed=0"})
    world.start_run("with-new", topology={"kind": "flat"}, clients=["clinic-a", "clinic-c", "clinic-new"])
    world.await_run("with-new")
    operator.get_by_role("link", name="Workers").click()
    operator.get_by_role("link", name="clinic-new").click()
    expect(operator.get_by_role("heading", name="Tasks of clinic-new")).to_be_visible()
    expect(operator.get_by_role("region", name="Tasks of clinic-new").get_by_text("Done").first).to_be_visible()

    holder = open_page(token, "/")
    expect(holder.get_by_role("link", name="Runs")).to_have_count(0)
    holder.get_by_role("link", name="Ask to be forgotten").click()
    holder.get_by_role("button", name="Show what it takes").click()
    holder.get_by_role("button", name="File the request").click()
    holder.get_by_label("Type “clinic-new” to confirm").fill("clinic-new")
    holder.get_by_role("button", name="Forget").click()
    certificate = holder.get_by_role("link", name="Certificate", exact=True)
    expect(certificate).to_be_visible(timeout=120_000)
    certificate.click()
    expect(holder.get_by_text("What is guaranteed")).to_be_visible()
    expect(holder.locator('[data-level="consistent"]')).to_be_visible()


def test_the_researcher_compares_two_runs(world: World, open_page: OpenPage) -> None:
    page = open_page(world.people["Research"], "/compare")
    for name in ("tree", "flat"):
        page.get_by_role("checkbox", name=re.compile(f"^{name} ")).check()
    expect(page).to_have_url(re.compile(f"run={world.runs['tree']}&run={world.runs['flat']}"))
    expect(page.get_by_role("img", name=re.compile("Accuracy.*(tree.*flat|flat.*tree)", re.DOTALL))).to_be_visible()
    costs = page.get_by_role("region", name="Cost and outcome")
    expect(costs.get_by_role("row", name=re.compile("tree.*Completed"))).to_be_visible()
    page.get_by_text("Accuracy, as a table").click()
    expect(
        page.get_by_role("region", name="Accuracy").get_by_role("cell", name=re.compile("flat")).first
    ).to_be_visible()
    page.goto(f"/runs/{world.runs['tree']}/cohorts")
    expect(page.get_by_text(re.compile("No erasure has touched|(Before|After) request"))).to_be_visible()
    page.goto(f"/runs/{world.runs['tree']}")
    expect(page.get_by_role("heading", name=re.compile("by class"))).to_be_visible()
    page.get_by_text("Accuracy by class, as a table").click()
    expect(page.get_by_role("cell", name="class 9")).to_be_visible()
    page.go_back()
    page.go_back()
    other = open_page(world.people["Research"], page.url)
    expect(other.get_by_role("checkbox", name=re.compile("^tree "))).to_be_checked()
