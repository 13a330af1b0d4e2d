"""The officer's way with OpenID Connect, over real processes: two persons sign in at a certified provider, one files,
the other approves, and the certificate is handed over by a link that is opened in a real browser. The coordinator is
killed in between, and nobody has to sign in again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx
import pytest

from services.audit.verification import Beside, check
from tests.e2e.test_officers_way import Officer
from tests.support.browser import opened_browser
from tests.support.deployment import Deployment, wait_until
from tests.support.openid import CLIENT_SECRET, running_provider, settings_of, signed_in

PEOPLE = {
    "weber": {"name": "Dr. Weber", "groups": ["officers"]},
    "huber": {"name": "Ms. Huber", "groups": ["officers"]},
}


class Person:
    """Somebody's browser."""

    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=30, trust_env=False)

    def sign_in(self, login: str) -> None:
        async def way() -> None:
            async with httpx.AsyncClient(base_url=self.http.base_url, timeout=30, trust_env=False) as http:
                back = await signed_in(http, "/v1/openid/start?return_to=/", login)
                assert back.status_code == 303, back.text
                for name in ("lethe", "lethe-csrf"):
                    self.http.cookies.set(name, http.cookies[name])

        anyio.run(way)

    def call(self, method: str, path: str, *, expect: int = 200, **options: Any) -> Any:
        headers = {"X-CSRF-Token": self.http.cookies["lethe-csrf"], **options.pop("headers", {})}
        answer = self.http.request(method, path, headers=headers, **options)
        assert answer.status_code == expect, answer.text
        return answer.json() if answer.content else None


@contextmanager
def people(url: str, *logins: str) -> Iterator[list[Person]]:
    found = [Person(url) for _ in logins]
    for person, login in zip(found, logins, strict=True):
        person.sign_in(login)
    try:
        yield found
    finally:
        for person in found:
            person.http.close()


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_two_persons_decide_and_the_leaver_is_handed_the_certificate(
    tmp_path: Path, database: str, request: pytest.FixtureRequest
) -> None:
    database_url = request.getfixturevalue("postgres_url") if database == "postgres" else None
    with running_provider(PEOPLE) as provider, Deployment(tmp_path, database_url) as deployment:
        settings = settings_of(provider, "officers=compliance@cardiology")
        deployment.settings = {f"LETHE_{name.upper()}": value for name, value in settings.items()}
        deployment.ports["coordinator"] = urlsplit(provider.public_url).port or 0
        deployment.start_coordinator()
        federation_id, _ = deployment.enrol("cardiology", ["hospital-a", "hospital-b"])
        with deployment.admin() as admin:
            admin.patch(f"/v1/federations/{federation_id}", json={"four_eyes": "all"}).raise_for_status()
        with people(provider.public_url, "weber", "huber") as (weber, huber):
            body, key = {"subjects": ["hospital-b"]}, {"Idempotency-Key": "one"}
            filed = weber.call("POST", "/v1/erasure-requests", expect=202, json=body, headers=key)
            path = f"/v1/erasure-requests/{filed['id']}"
            deployment.processes["coordinator"].end()
            deployment.restart("coordinator")
            assert weber.call("POST", f"{path}/approve", expect=403)["code"] == "four-eyes"
            approved = huber.call("POST", f"{path}/approve")
            assert (approved["filed_by"]["person"], approved["decided_by"]["person"]) == ("Dr. Weber", "Ms. Huber")
            wait_until(lambda: weber.call("GET", path)["status"] == "completed", 60, "it is completed", deployment.logs)
            page = weber.http.get(f"{path}/certificate/page").text
            assert "Two persons" in page
            link = weber.call("POST", f"{path}/hand-over", expect=201)
            deployment.processes["coordinator"].end()
            deployment.restart("coordinator")
            _open_in_a_browser(link, tmp_path)
            (listed,) = huber.call("GET", f"{path}/hand-overs")["items"]
            assert listed["opened_at"] is not None
            _by_command(deployment, filed["id"])
            huber.call("DELETE", "/v1/browser-session", expect=204)
            weber.call("GET", "/v1/browser-session")
        log = deployment.processes["coordinator"].log.read_text()
    secrets = (CLIENT_SECRET, link["secret_shown_once"], weber.http.cookies["lethe"].partition(".")[2])
    assert "session.begun" in log and not any(secret in log for secret in secrets)


def _by_command(deployment: Deployment, request_id: str) -> None:
    """Make another link, look at it and revoke it."""
    officer = Officer(deployment, (deployment.directory / "home" / "admin.token").read_text().strip())
    link = officer.run("certificates", "hand-over", request_id, "--days", "3").strip()
    secret = link.rpartition(".")[2]
    assert link.startswith(f"{deployment.url()}/hand-over#")
    listed = [json.loads(one) for one in officer.run("certificates", "hand-overs", request_id, "--json").splitlines()]
    assert [one["opened_at"] is None for one in listed] == [True, False] and secret not in str(listed)
    officer.run("certificates", "revoke-hand-over", listed[0]["id"])
    officer.run("certificates", "revoke-hand-over", listed[1]["id"], fails=True)
    opened = httpx.post(f"{deployment.url()}/v1/hand-overs/{listed[0]['id']}:open", json={"secret": secret})
    assert opened.status_code == 410 and opened.json()["code"] == "link-expired"


def _open_in_a_browser(link: dict[str, Any], folder: Path) -> None:
    """Nothing is spent before the button is pressed; then every file is there, and verifies."""
    with opened_browser() as browser:
        page, complaints, posted = browser.new_page(accept_downloads=True), list[str](), list[str]()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: posted.append(request.url) if request.method == "POST" else None)
        page.goto(link["url"])
        page.wait_for_selector("#open:enabled")
        assert not posted and "#" not in page.url
        page.click("#open")
        page.wait_for_selector("#outcome.proved")
        files = {}
        for name in page.locator("#files a").all_inner_texts():
            with page.expect_download() as download:
                page.click(f"#files a[download='{name}']")
            files[name] = Path(download.value.path()).read_bytes()
        assert not complaints and len(posted) == 1
        page.goto("about:blank")
        page.goto(link["url"])
        page.click("#open")
        page.wait_for_selector("#outcome.failed")
        assert "opened before" in page.inner_text("#outcome")
    assert sorted(files) == [
        "certificate.html",
        "certificate.json",
        "certificate.list.jsonl",
        "lethe.pub.pem",
        "opening.json",
    ]
    listed = folder / "list.jsonl"
    listed.write_bytes(files["certificate.list.jsonl"])
    with listed.open("rb") as artefacts:
        beside = Beside(list=artefacts, opening=files["opening.json"], client="hospital-b")
        verdict = check(files["certificate.json"], files["lethe.pub.pem"], beside=beside)
    assert verdict.valid and verdict.complete, verdict.checks
    assert json.loads(files["opening.json"])["clients"] == ["hospital-b"]
