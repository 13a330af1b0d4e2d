"""The officer's way with OpenID Connect, over real processes: two persons sign in at a certified provider; one previews
and files, and cannot approve, also not with a credential that they made; the other approves; both follow, read the
certificate as a page, and hand it over by a link that is opened in a real browser. What was handed over is verified
without the coordinator. That is killed in between, and nobody has to sign in again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx
import pytest

from tests.e2e.test_officers_way import Officer
from tests.support.browser import opened_browser
from tests.support.deployment import Deployment
from tests.support.openid import CLIENT_SECRET, running_provider, settings_of, signed_in

PEOPLE = {
    "weber": {"name": "Dr. Weber", "groups": ["stewards"]},
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

    def follow(self, path: str, *, until: str | None = None) -> list[str]:
        """The types of what the stream tells, to its end or to the first of a type."""
        told = []
        with self.http.stream("GET", f"{path}/events/stream") as stream:
            assert stream.status_code == 200, stream.read()
            for line in stream.iter_lines():
                if line.startswith("event: "):
                    told.append(line.removeprefix("event: "))
                    if told[-1] == until:
                        break
        return told

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
        settings = settings_of(provider, "officers=compliance@cardiology, stewards=admin@cardiology")
        deployment.settings = {f"LETHE_{name.upper()}": value for name, value in settings.items()}
        deployment.ports["coordinator"] = urlsplit(provider.public_url).port or 0
        deployment.start_coordinator()
        federation_id, _ = deployment.enrol("cardiology", ["hospital-a", "hospital-b"])
        with deployment.admin() as admin:
            admin.patch(f"/v1/federations/{federation_id}", json={"four_eyes": "all"}).raise_for_status()
        with people(provider.public_url, "weber", "huber") as (weber, huber):
            body, key = {"subjects": ["hospital-b"]}, {"Idempotency-Key": "one"}
            preview = weber.call("POST", "/v1/erasure-requests:preview", json=body)
            assert preview["needs_approval"] is True and preview["chosen"] == "retrain"
            filed = weber.call("POST", "/v1/erasure-requests", expect=202, json=body, headers=key)
            path = f"/v1/erasure-requests/{filed['id']}"
            deployment.processes["coordinator"].end()
            deployment.restart("coordinator")
            assert weber.call("POST", f"{path}/approve", expect=403)["code"] == "four-eyes"
            _with_a_second_credential(weber, federation_id, path)
            approved = huber.call("POST", f"{path}/approve")
            assert (approved["filed_by"]["person"], approved["decided_by"]["person"]) == ("Dr. Weber", "Ms. Huber")
            told = huber.follow(path)
            assert told[0] == "ErasureFiled" and "CertificateIssued" in told
            assert weber.call("GET", path)["status"] == "completed"
            page = weber.http.get(f"{path}/certificate/page").text
            assert "Two persons" in page and "hospital-b" not in page
            link = weber.call("POST", f"{path}/hand-over", expect=201)
            deployment.processes["coordinator"].end()
            deployment.restart("coordinator")
            _open_in_a_browser(link, tmp_path)
            (listed,) = huber.call("GET", f"{path}/hand-overs")["items"]
            assert listed["opened_at"] is not None
            _by_command(deployment, filed["id"])
            _sign_out(huber, f"/v1/federations/{federation_id}")
            weber.call("GET", "/v1/browser-session")
        log = deployment.processes["coordinator"].log.read_text()
        nobody = Officer(deployment, "")
    _verify(nobody, tmp_path)
    secrets = (CLIENT_SECRET, link["secret_shown_once"], weber.http.cookies["lethe"].partition(".")[2])
    assert "session.begun" in log and not any(secret in log for secret in secrets)


def _with_a_second_credential(filer: Person, federation_id: str, path: str) -> None:
    """Whoever filed makes a credential for "somebody else", and tries with that."""
    body = {"role": "compliance", "label": "Ms. Huber"}
    made = filer.call("POST", f"/v1/federations/{federation_id}/credentials", expect=201, json=body)
    headers = {"Authorization": f"Bearer {made['token']}"}
    refused = httpx.post(f"{filer.http.base_url}{path}/approve", headers=headers)
    assert refused.status_code == 403 and refused.json()["code"] == "four-eyes", refused.text


def _sign_out(person: Person, path: str) -> None:
    """What their browser still follows ends with the session."""
    with ThreadPoolExecutor(1) as threads:
        following = threads.submit(person.follow, path)
        person.call("DELETE", "/v1/browser-session", expect=204)
        following.result(timeout=30)


def _verify(nobody: Officer, folder: Path) -> None:
    """Without the coordinator, and tied to the client."""
    certificate, key = str(folder / "certificate.json"), str(folder / "lethe.pub.pem")
    opening = ("--opening", str(folder / "opening.json"), "--client")
    assert "hospital-b" in nobody.run("verify", certificate, "--key", key, *opening, "hospital-b")
    nobody.run("verify", certificate, "--key", key, *opening, "hospital-a", fails=True)


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
    for name, content in files.items():
        (folder / name).write_bytes(content)
