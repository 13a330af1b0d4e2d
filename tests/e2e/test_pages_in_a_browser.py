"""Certificate pages and verify.html in a real browser: from a file, and over plain HTTP, where browsers offer no
WebCrypto."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from services.audit.keys import key_id
from services.audit.pages import html
from services.audit.pages.certificate import content_of, read
from tests.golden import certificate_v1 as first
from tests.golden import certificate_v2 as second
from tests.golden.certificate_v1 import KEY, PUBLIC_KEY, SUBJECTS
from tests.support.browser import HOST, opened_browser

FINGERPRINT = key_id(KEY.public_key())
PEM = PUBLIC_KEY.read_bytes()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with opened_browser() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """What it complains of, as blocked scripts and styles, fails the test; so does any request but for the page."""
    page, complaints = browser.new_page(), list[str]()
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: complaints.append(dialog.message))
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    yield page
    assert not complaints
    assert all(url.endswith(".html") for url in asked), asked
    page.close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(tmp_path)))
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://{HOST}:{server.server_port}"
    server.shutdown()
    server.server_close()


def written(folder: Path, certificate: bytes, name: str = "certificate.html", keys: bytes = PEM) -> Path:
    """Of a certificate as it is handed over; its key came with it."""
    path = folder / name
    content = content_of(read(second.CERTIFICATE.read_bytes(), PEM, "issuer"))
    path.write_text(html.certificate_page(content, certificate, keys), "utf-8")
    return path


def outcome(page: Page, level: str) -> str:
    page.wait_for_selector(f"#outcome.{level}")
    return page.inner_text("#outcome")


@pytest.mark.parametrize("version", [first, second])
@pytest.mark.parametrize("is_secure", [True, False])
def test_a_page_verifies_itself_and_says_what_that_proves(
    page: Page, tmp_path: Path, served: str, version: Any, is_secure: bool
) -> None:
    file = written(tmp_path, version.CERTIFICATE.read_bytes())
    page.goto(file.as_uri() if is_secure else f"{served}/{file.name}")
    assert page.evaluate("isSecureContext") == is_secure
    assert "proves nothing about who signed" in outcome(page, "consistent")
    page.fill("#trusted", FINGERPRINT)
    assert "Signed by the key" in outcome(page, "proved")
    page.fill("#trusted", FINGERPRINT[:-1] + ("0" if FINGERPRINT[-1] != "0" else "1"))
    assert "another key than yours" in outcome(page, "failed")
    page.fill("#trusted", PEM.decode())
    outcome(page, "proved")
    page.click("summary")
    assert "01890a5d-ac96-774b-bcce-b302099a8058" in page.inner_text("#facts")


def test_a_page_whose_certificate_was_changed_says_so(page: Page, tmp_path: Path) -> None:
    changed = second.CERTIFICATE.read_bytes().replace(b'"sig":"k', b'"sig":"l')
    page.goto(written(tmp_path, changed).as_uri())
    assert "Do not rely on it" in outcome(page, "failed")
    assert page.text_content("#facts") == "", "nothing is shown of what does not verify"


def test_hostile_names_run_nothing(page: Page, tmp_path: Path) -> None:
    from services.audit.certificate import issue
    from tests.unit.audit.pages.test_pages import HOSTILE, hostile

    certificate = issue(hostile(), SUBJECTS, KEY)
    file = tmp_path / "hostile.html"
    file.write_text(html.certificate_page(content_of(read(certificate, PEM)), certificate, PEM), "utf-8")
    page.goto(file.as_uri())
    outcome(page, "consistent")
    page.click("summary")
    assert HOSTILE in page.inner_text("main") and HOSTILE in page.inner_text("#facts")
    assert page.query_selector("img") is None


@pytest.mark.parametrize("is_secure", [True, False])
def test_verify_html_takes_a_certificate_and_a_key(page: Page, tmp_path: Path, served: str, is_secure: bool) -> None:
    file = tmp_path / "verify.html"
    file.write_text(html.verify_page(), "utf-8")
    page.goto(file.as_uri() if is_secure else f"{served}/{file.name}")
    page.set_input_files("#files", [second.CERTIFICATE])
    assert "is not at hand" in outcome(page, "unknown")
    page.set_input_files("#files", [PUBLIC_KEY])
    assert "Signed by the key" in outcome(page, "proved")
    assert "Limit 1 of" in page.inner_text("#facts")


def test_verify_html_takes_the_page_of_a_certificate_and_trusts_no_key_in_it(page: Page, tmp_path: Path) -> None:
    (tmp_path / "verify.html").write_text(html.verify_page(), "utf-8")
    page.goto((tmp_path / "verify.html").as_uri())
    page.set_input_files("#files", [written(tmp_path, second.CERTIFICATE.read_bytes())])
    outcome(page, "consistent")
    page.fill("#trusted", FINGERPRINT)
    outcome(page, "proved")


def test_the_print_view_has_every_section_and_no_controls(page: Page, tmp_path: Path) -> None:
    page.goto(written(tmp_path, second.CERTIFICATE.read_bytes()).as_uri())
    outcome(page, "consistent")
    page.emulate_media(media="print")
    assert page.is_visible("text=What is not") and not page.is_visible("#trusted") and not page.is_visible("summary")
    assert page.pdf().startswith(b"%PDF")
