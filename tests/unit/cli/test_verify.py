"""`lethe verify` and `lethe certificates` with what lies beside a certificate: what is said, and the exit codes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.golden import certificate_v1 as first
from tests.golden.certificate_v1 import PUBLIC_KEY, digest
from tests.golden.certificate_v2 import CERTIFICATE, LIST, OPENING
from tests.golden.home_0001 import HERE
from tests.support import samples
from tests.unit.cli.conftest import Server

KEY = ("--key", str(PUBLIC_KEY))


REQUEST = samples.erasure("r1")


@pytest.fixture
def server(server: Server) -> Server:
    server.answers[f"GET /v1/erasure-requests/{REQUEST['id']}"] = [(200, REQUEST)]
    return server


@pytest.fixture
def alone(tmp_path: Path) -> str:
    """The certificate with nothing beside it."""
    return str(shutil.copy(CERTIFICATE, tmp_path / "certificate.json"))


def changed(path: Path, out: Path, old: bytes, new: bytes) -> str:
    assert old in path.read_bytes()
    out.write_bytes(path.read_bytes().replace(old, new, 1))
    return str(out)


def test_the_list_that_lies_beside_a_certificate_is_checked_by_itself(lethe: Any, server: Server) -> None:
    code, out, _ = lethe("verify", str(CERTIFICATE), *KEY)
    assert code == 0 and "ok    list" in out and "17 leaves" in out
    assert not server.seen


def test_without_the_list_the_signature_still_holds_and_the_code_is_3(lethe: Any, alone: str) -> None:
    code, out, err = lethe("verify", alone, *KEY)
    assert code == 3 and "ok    signatures" in out and "list not at hand" in out and "list not at hand" in err
    code, out, _ = lethe("verify", alone, *KEY, "--json")
    found = json.loads(out)
    assert code == 3 and (found["valid"], found["complete"], found["checks"][-1]["ok"]) == (True, False, None)


def test_a_list_can_be_named(lethe: Any, alone: str) -> None:
    assert lethe("verify", alone, *KEY, "--list", str(LIST))[0] == 0


def test_a_changed_list_is_reported_whether_it_was_named_or_found(lethe: Any, alone: str, tmp_path: Path) -> None:
    """Also where the certificate would hold without it."""
    beside = changed(LIST, tmp_path / "certificate.list.jsonl", b'"deleted"', b'"also-held-by-another"')
    for arguments in ((), ("--list", beside)):
        code, out, err = lethe("verify", alone, *KEY, *arguments)
        assert code == 1 and "FAIL  list" in out and "(list)" in err


def test_a_named_file_that_is_not_there_is_unusable_input(lethe: Any, alone: str, tmp_path: Path) -> None:
    none = str(tmp_path / "none")
    for arguments in (("--list", none), ("--inclusion", none), ("--client", "b", "--opening", none)):
        assert lethe("verify", alone, *KEY, *arguments)[0] == 2, arguments


def test_one_artefact_is_proved_offline_and_checked_without_the_list(
    lethe: Any, server: Server, alone: str, tmp_path: Path
) -> None:
    proof = str(tmp_path / "proof.json")
    arguments = ("certificates", "prove", "--list", str(LIST), "-o", proof, "--digest")
    assert lethe(*arguments, digest("update of b"))[0] == 0
    code, out, _ = lethe("verify", alone, *KEY, "--inclusion", proof)
    assert code == 0 and f"update {digest('update of b')} is deleted" in out
    assert lethe("verify", str(first.CERTIFICATE), *KEY, "--inclusion", proof)[0] == 1
    other = changed(Path(proof), tmp_path / "other.json", digest("update of b").encode(), digest("other").encode())
    assert lethe("verify", alone, *KEY, "--inclusion", other)[0] == 1
    assert lethe(*arguments, digest("never heard of"))[0] == 1
    assert not server.seen


def test_a_list_that_cannot_be_read_proves_nothing(lethe: Any, tmp_path: Path) -> None:
    arguments = ("-o", str(tmp_path / "proof.json"), "--digest", digest("x"))
    assert lethe("certificates", "prove", "--list", str(tmp_path / "none"), *arguments)[0] == 2
    (tmp_path / "torn").write_bytes(LIST.read_bytes()[:-10])
    assert lethe("certificates", "prove", "--list", str(tmp_path / "torn"), *arguments)[0] == 1
    assert not (tmp_path / "proof.json").exists()


def test_whom_a_certificate_is_about_is_checked_by_its_opening(lethe: Any, tmp_path: Path) -> None:
    about = ("verify", str(CERTIFICATE), *KEY, "--opening", str(OPENING), "--client")
    code, out, _ = lethe(*about, "hospital-b")
    assert code == 0 and "ok    opening" in out
    code, out, err = lethe(*about, "hospital-c")
    assert code == 1 and "FAIL  opening" in out and "is not about" in err
    request = b"b302099a8058"
    other = changed(OPENING, tmp_path / "opening.json", request, b"b302099a8057")
    assert lethe("verify", str(CERTIFICATE), *KEY, "--opening", other, "--client", "hospital-b")[0] == 1


@pytest.mark.parametrize("command", [("verify",), ("certificates", "show")])
def test_a_certificate_of_another_installation_is_refused_with_where_its_key_is(
    lethe: Any, command: tuple[str, ...]
) -> None:
    code, _, err = lethe(*command, str(CERTIFICATE), "--key", str(HERE / "issuer.pub.pem"))
    assert code == 1 and "is unknown: its public key was not given" in err and "keys list" in err


@pytest.mark.parametrize("arguments", [("--client", "hospital-b"), ("--opening", str(OPENING))])
def test_a_client_and_an_opening_go_together(lethe: Any, arguments: tuple[str, str]) -> None:
    code, _, err = lethe("verify", str(CERTIFICATE), *KEY, *arguments)
    assert code == 2 and "go together" in err


def test_a_certificate_of_the_first_version_needs_no_list(lethe: Any, tmp_path: Path) -> None:
    for name in ("history", "approximate", "samples"):
        assert lethe("verify", str(HERE / f"certificate-{name}.json"), "--key", str(HERE / "issuer.pub.pem"))[0] == 0
    alone = shutil.copy(first.CERTIFICATE, tmp_path / "certificate.json")
    shutil.copy(LIST, tmp_path / "certificate.list.jsonl")
    assert lethe("verify", str(alone), *KEY)[0] == 0
    code, _, err = lethe("verify", str(alone), *KEY, "--list", str(LIST))
    assert code == 1 and "lists its artefacts itself" in err


def test_a_certificate_is_fetched_with_its_list(server: Server, lethe: Any, tmp_path: Path) -> None:
    path = f"GET /v1/erasure-requests/{REQUEST['id']}/certificate"
    server.answers[path] = [(200, CERTIFICATE.read_text())]
    server.answers[f"{path}/artefacts"] = [(200, LIST.read_text())]
    certificate = tmp_path / "b.json"
    assert lethe("certificates", "get", REQUEST["id"], "-o", str(certificate))[0] == 0
    assert (tmp_path / "b.list.jsonl").read_bytes() == LIST.read_bytes()
    assert lethe("verify", str(certificate), *KEY)[0] == 0


def test_a_list_that_is_not_kept_any_more_does_not_stop_the_fetching(
    server: Server, lethe: Any, tmp_path: Path
) -> None:
    """Nor is the list of another certificate left where it would be taken for this one's."""
    server.answers[f"GET /v1/erasure-requests/{REQUEST['id']}/certificate"] = [(200, CERTIFICATE.read_text())]
    (tmp_path / "b.list.jsonl").write_text("that of another")
    code, _, err = lethe("certificates", "get", REQUEST["id"], "-o", str(tmp_path / "b.json"))
    assert code == 0 and "no list beside it" in err
    assert not (tmp_path / "b.list.jsonl").exists()
    assert lethe("verify", str(tmp_path / "b.json"), *KEY)[0] == 3


def test_an_opening_is_fetched_for_its_reader_alone(server: Server, lethe: Any, tmp_path: Path) -> None:
    server.answers[f"GET /v1/erasure-requests/{REQUEST['id']}/opening"] = [(200, OPENING.read_text())]
    out = tmp_path / "opening.json"
    assert lethe("certificates", "opening", REQUEST["id"], "-o", str(out))[0] == 0
    assert out.read_bytes() == OPENING.read_bytes() and out.stat().st_mode & 0o077 == 0
