"""`lethe certificates list`, `show` and `verifier`: from the coordinator, and from the file alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from services.audit.pages import html
from tests.golden import certificate_v1 as first
from tests.golden.certificate_v1 import PUBLIC_KEY
from tests.golden.certificate_v2 import CERTIFICATE, LIST, OPENING
from tests.support import samples
from tests.unit.cli.conftest import Server

KEY = ("--key", str(PUBLIC_KEY))
ID = "01890a5d-ac96-774b-bcce-b302099a8058"
REQUEST = f"/v1/erasure-requests/{ID}"


def words(text: str) -> str:
    return " ".join(text.split())


def test_a_file_is_shown_without_network(lethe: Any, server: Server) -> None:
    for certificate in (first.CERTIFICATE, CERTIFICATE):
        code, out, _ = lethe("certificates", "show", str(certificate), *KEY)
        assert code == 0 and "Verified: the signature is by the key that was given" in words(out)
        assert "What is guaranteed" in out and "What is not" in out
    assert not server.seen


def test_without_a_key_the_page_says_that_nobody_looked_at_the_signature(lethe: Any) -> None:
    code, out, _ = lethe("certificates", "show", str(CERTIFICATE))
    assert code == 0 and "Not verified: no public key was given" in words(out)


def test_the_list_that_lies_beside_is_checked(lethe: Any, tmp_path: Path) -> None:
    assert "list: holds" in words(lethe("certificates", "show", str(CERTIFICATE), *KEY)[1])
    alone = shutil.copy(CERTIFICATE, tmp_path / "certificate.json")
    assert "list: not checked" in words(lethe("certificates", "show", str(alone), *KEY)[1])
    (tmp_path / "certificate.list.jsonl").write_bytes(LIST.read_bytes()[:-100])
    code, out, err = lethe("certificates", "show", str(alone), *KEY)
    assert code == 1 and not out and "not valid (list)" in err


@pytest.mark.parametrize("form", ["text", "md", "html"])
def test_a_changed_certificate_is_not_shown(lethe: Any, tmp_path: Path, form: str) -> None:
    changed, out_file = tmp_path / "certificate.json", tmp_path / "page"
    changed.write_bytes(CERTIFICATE.read_bytes().replace(b'"sig":"k', b'"sig":"l'))
    code, out, err = lethe("certificates", "show", str(changed), *KEY, "--format", form, "-o", str(out_file))
    assert code == 1 and not out and "not valid (signatures)" in err and not out_file.exists()


def test_the_page_has_the_certificate_and_the_key_in_it(lethe: Any, tmp_path: Path) -> None:
    out_file = tmp_path / "certificate.html"
    assert lethe("certificates", "show", str(CERTIFICATE), *KEY, "--format", "html", "-o", str(out_file))[0] == 0
    page = out_file.read_text("utf-8")
    assert page.startswith("<!DOCTYPE html>") and '<pre id="envelope" hidden>ey' in page


def test_whom_it_is_about_is_shown_by_the_opening(lethe: Any) -> None:
    about = ("certificates", "show", str(CERTIFICATE), "--opening", str(OPENING), "--client")
    assert "The client hospital-b, as the opening" in words(lethe(*about, "hospital-b", *KEY)[1])
    assert lethe(*about, "hospital-c", *KEY)[0] == 1
    assert lethe(*about, "hospital-b")[0] == 2, "without a key anybody could have written both"
    assert lethe("certificates", "show", str(CERTIFICATE), *KEY, "--client", "hospital-b")[0] == 2


def test_the_coordinators_own_word_on_its_key_is_not_the_readers(server: Server, lethe: Any) -> None:
    server.answers[f"GET {REQUEST}"] = [(200, samples.erasure(id=ID))]
    server.answers[f"GET {REQUEST}/certificate"] = [(200, CERTIFICATE.read_text())]
    server.answers[f"GET {REQUEST}/certificate/artefacts"] = [(200, LIST.read_text())]
    server.answers["GET /v1/erasure/discovery"] = [(200, samples.discovery(public_key=PUBLIC_KEY.read_text()))]
    asked = ("certificates", "show", ID)
    code, out, _ = lethe(*asked)
    assert code == 0 and "Consistent, not proved" in words(out) and "list: holds" in words(out)
    assert "Verified: the signature" in words(lethe(*asked, *KEY)[1])
    del server.answers[f"GET {REQUEST}/certificate/artefacts"]
    assert "list: not checked" in words(lethe(*asked)[1])


def test_a_certificate_that_is_not_there_is_refused_with_what_to_do(server: Server, lethe: Any) -> None:
    problem = {"title": "not yet", "code": "certificate-not-ready", "detail": "the request is fenced", "status": 409}
    server.answers[f"GET {REQUEST}"] = [(200, samples.erasure(id=ID))]
    server.answers[f"GET {REQUEST}/certificate"] = [(409, problem)]
    code, _, err = lethe("certificates", "show", ID)
    assert code == 1 and "certificate-not-ready" in err and "lethe erase watch" in err


def test_completed_requests_are_listed_with_whether_they_were_in_time(server: Server, lethe: Any) -> None:
    request = samples.erasure(chosen="retrain", completed_at="2026-01-20T09:14:30Z")
    late = samples.erasure("r2", chosen="retrain", completed_at="2026-05-01T00:00:00Z")
    page = {"items": [request, late], "next_cursor": None}
    server.answers["GET /v1/erasure-requests?status=completed"] = [(200, page)]
    code, out, _ = lethe("certificates", "list")
    rows = [line.split()[-2:] for line in out.splitlines()[2:]]
    assert code == 0 and rows == [["yes", request["id"]], ["no", late["id"]]]
    lines = lethe("certificates", "list", "--json")[1].splitlines()
    assert [json.loads(line)["id"] for line in lines] == [request["id"], late["id"]]


def test_the_verifier_is_one_page_that_needs_no_coordinator(lethe: Any, server: Server, tmp_path: Path) -> None:
    assert lethe("certificates", "verifier", "-o", str(tmp_path / "verify.html"))[0] == 0
    assert (tmp_path / "verify.html").read_text("utf-8") == html.verify_page()
    assert not server.seen
