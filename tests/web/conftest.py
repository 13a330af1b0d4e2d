"""A coordinator with workers, people with tokens, and a browser. One of each serves all tests of this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from lethe import Client
from tests.support.browser import opened_browser
from tests.support.deployment import Deployment, wait_until

CLINICS = [f"clinic-{letter}" for letter in "abcdef"]
TOPOLOGIES: dict[str, dict[str, Any]] = {
    "tree": {"kind": "tree", "shape": "huffman"},
    "flat": {"kind": "flat"},
    "clusters": {"kind": "clusters", "num_clusters": 2, "assignment": "knot", "merge": "weighted_average"},
}
WITHIN_S = 120.0
expect.set_options(timeout=30_000)


def run_spec(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "seed": 5,
        "model": {"name": "mlp", "params": {"input_shape": [8, 8], "num_classes": 10}},
        "local": {"epochs": 1, "batch_size": 32, "learning_rate": 0.1},
        "topology": {"kind": "tree", "shape": "huffman"},
        "validation": {"data": "builtin:digits"},
        "stop": {"rounds": 3},
        **changes,
    }


@dataclass
class World:
    """What every test finds: a federation whose clients trained a tree, and people with roles in it."""

    deployment: Deployment
    federation_id: str
    clients: dict[str, str]
    """Tokens by name."""
    people: dict[str, str]
    """Tokens by label."""
    runs: dict[str, str] = field(default_factory=dict)
    """Ids by name."""

    @property
    def url(self) -> str:
        return self.deployment.url()

    @property
    def admin_token(self) -> str:
        return (self.deployment.directory / "home" / "admin.token").read_text().strip()

    def call(self, method: str, path: str, token: str | None = None, **options: Any) -> Any:
        headers = {"Authorization": f"Bearer {token or self.admin_token}", **options.pop("headers", {})}
        answer = httpx.request(method, self.url + path, headers=headers, timeout=30, **options)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    def file(self, client: str, token: str, **changes: Any) -> str:
        body = {"federation_id": self.federation_id, "subjects": [client], **changes}
        key = {"Idempotency-Key": f"{client} {changes}"}
        return str(self.call("POST", "/v1/erasure-requests", token, json=body, headers=key)["id"])

    def start_run(self, name: str, **changes: Any) -> str:
        with Client(self.url, token=self.admin_token) as client:
            self.runs[name] = str(client.runs.create(run_spec(name, **changes), federation=self.federation_id).id)
        return self.runs[name]

    def await_run(self, name: str, status: str = "completed") -> None:
        path = f"/v1/runs/{self.runs[name]}"
        is_there = lambda: self.call("GET", path)["status"] == status  # noqa: E731
        wait_until(is_there, WITHIN_S, f"{name} is {status}", self.deployment.logs)


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with Deployment(tmp_path_factory.mktemp("world")) as deployment:
        deployment.start_coordinator()
        federation_id, clients = deployment.enrol("clinics", CLINICS)
        world = World(deployment, federation_id, clients, {})
        for label, role in (
            ("Dr. Weber", "compliance"),
            ("Ms. Huber", "compliance"),
            ("Operations", "operator"),
            ("Research", "viewer"),
        ):
            body = {"role": role, "label": label}
            issued = world.call("POST", f"/v1/federations/{federation_id}/credentials", json=body)
            world.people[label] = issued["token"]
        data = {name: f"builtin:digits#part={i}/{len(CLINICS)},seed=0" for i, name in enumerate(CLINICS)}
        deployment.start_fleet("workers", clients, data)
        for name, topology in TOPOLOGIES.items():
            world.start_run(name, topology=topology)
        for name in world.runs:
            world.await_run(name)
        yield world


@pytest.fixture(scope="session")
def places(world: World) -> dict[str, str]:
    request = world.file("clinic-f", world.people["Dr. Weber"], external_ref="<img src=x onerror=alert(1)>")
    path = f"/v1/erasure-requests/{request}"
    is_over = lambda: world.call("GET", path)["status"] == "completed"  # noqa: E731
    wait_until(is_over, 120, "the request is completed", world.deployment.logs)
    world.file("clinic-e", world.people["Ms. Huber"], needs_approval=True, external_ref="DSR-2026-0421")
    checkpoints = world.call("GET", f"/v1/runs/{world.runs['tree']}/checkpoints?limit=200")["items"]
    head = max((one for one in checkpoints if one["is_head"]), key=lambda one: one["round"])["id"]
    return {**world.runs, "request": request, "checkpoint": head, "shared": shared(world)}


def shared(world: World) -> str:
    """A federation whose clients are divided among its jobs, with several periods. Nobody trains in it."""
    body = {"name": "shared", "allocation": "game"}
    federation_id = str(world.call("POST", "/v1/federations", json=body)["id"])
    for number in range(6):
        resources = {"samples": 100 * (number + 1), "seconds": 10.0, "bytes": 1_000_000, "stored_bytes": 1_000_000}
        enrolled = {"name": f"site-{number}", "resources": resources}
        world.call("POST", f"/v1/federations/{federation_id}/clients", json=enrolled)
    with Client(world.url, token=world.admin_token) as client:
        for name, reward in (("images", 120.0), ("reports", 200.0), ("sensors", 90.0)):
            client.runs.create(run_spec(name, topology={"kind": "flat"}, reward=reward), federation=federation_id)
    return federation_id


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with opened_browser() as browser:
        yield browser


@pytest.fixture
def open_page(browser: Browser, world: World) -> Iterator[Callable[..., Page]]:
    """`open_page(token, "/requests")`: a page in a browser of its own, with somebody signed in. What the browser
    complains of, like a blocked style, fails the test; answers that are no success are the test's own affair."""
    contexts: list[BrowserContext] = []
    complaints: list[str] = []

    def complain(text: str) -> None:
        if "Failed to load resource" not in text:
            complaints.append(text)

    def opened(token: str | None, path: str = "/", **options: Any) -> Page:
        context = browser.new_context(base_url=world.url, accept_downloads=True, **{"locale": "en-GB", **options})
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complain(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complain(str(error)))
        page.goto(path)
        if token is not None:
            sign_in(page, token)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not complaints


def sign_in(page: Page, token: str) -> None:
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("button", name="Sign out")).to_be_visible()


def saved(page: Page, button: str) -> Path:
    with page.expect_download() as download:
        page.get_by_role("button", name=button, exact=True).click()
    return Path(download.value.path())
