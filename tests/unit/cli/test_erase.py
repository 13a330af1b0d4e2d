"""`lethe erase`, `certificates` and `verify`: what is sent, what is printed, and the exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.golden.certificate_v1 import CERTIFICATE, PUBLIC_KEY
from tests.support import samples
from tests.unit.cli.conftest import Server

REQUEST = samples.erasure("r1")
ID = REQUEST["id"]
FEDERATION = samples.federation("f")
DISCOVERY = {
    "scopes": ["client"],
    "methods": [],
    "public_key": PUBLIC_KEY.read_text(),
    "key_id": "sha256:…",
    "recoveries": [],
    "legal_deadline_days": 30,
}


@pytest.fixture
def server(server: Server) -> Server:
    server.answers["GET /v1/federations"] = [(200, {"items": [FEDERATION]})]
    server.answers["POST /v1/erasure-requests"] = [(202, REQUEST)]
    server.answers[f"GET /v1/erasure-requests/{ID}"] = [(200, REQUEST)]
    return server


def sent(server: Server) -> tuple[dict[str, str], Any]:
    """Headers and body of the last request."""
    _, headers, body = server.seen[-1]
    return headers, json.loads(body)


def test_a_request_names_the_clients_and_carries_a_key(server: Server, lethe: Any) -> None:
    code, out, _ = lethe("erase", "--client", "b", "--client", "c", "--recovery-rounds", "3", "--json")
    assert code == 0 and json.loads(out) == REQUEST
    headers, body = sent(server)
    assert headers["idempotency-key"]
    assert body == {
        "federation_id": FEDERATION["id"],
        "subjects": ["b", "c"],
        "method": "auto",
        "recovery_rounds": 3,
        "needs_approval": False,
    }


@pytest.mark.parametrize(
    ("given", "beginning"),
    [("2027-01-31", "2027-01-31T23:59:59"), ("2027-01-31T12:00:00+01:00", "2027-01-31T12:00:00+01:00")],
)
def test_a_request_carries_its_legal_deadline(server: Server, lethe: Any, given: str, beginning: str) -> None:
    assert lethe("erase", "--client", "b", "--legal-deadline", given)[0] == 0
    deadline = sent(server)[1]["legal_deadline"]
    assert deadline.startswith(beginning) and datetime.fromisoformat(deadline).tzinfo is not None


def test_a_legal_deadline_that_is_no_date_sends_nothing(server: Server, lethe: Any) -> None:
    code, _, err = lethe("erase", "--client", "b", "--legal-deadline", "soon")
    assert code == 2 and "is no date" in err and "2026-12-24" in err
    assert not server.seen


def test_samples_of_one_client_are_numbers_and_ranges(server: Server, lethe: Any, tmp_path: Path) -> None:
    assert lethe("erase", "--client", "b", "--samples", "17,3,20-22")[0] == 0
    _, body = sent(server)
    assert (body["scope"], body["samples"]) == ("samples", {"b": [3, 17, 20, 21, 22]})
    (tmp_path / "rows").write_text("5\n7-8,5\n")
    assert lethe("erase", "--client", "b", "--samples", f"@{tmp_path / 'rows'}")[0] == 0
    assert sent(server)[1]["samples"] == {"b": [5, 7, 8]}


@pytest.mark.parametrize("text", ["", "a", "3-", "-3", "9-3", "0-999999999", "@missing"])
def test_samples_that_are_no_numbers_are_refused_before_anything_is_sent(server: Server, lethe: Any, text: str) -> None:
    code, _, err = lethe("erase", "--client", "b", f"--samples={text}")
    assert code == 2 and "3,17,20-25" in err
    assert not server.seen


def test_parameters_of_the_method_are_json_or_text(server: Server, lethe: Any) -> None:
    more = ("--param", "warmup_rounds=5", "--param", "how=fast")
    assert lethe("erase", "--client", "b", "--method", "rapid", *more)[0] == 0
    assert sent(server)[1]["params"] == {"warmup_rounds": 5, "how": "fast"}
    assert lethe("erase", "--client", "b", "--param", "5")[0] == 2


def test_samples_of_two_clients_are_two_requests(server: Server, lethe: Any) -> None:
    code, _, err = lethe("erase", "--client", "b", "--client", "c", "--samples", "3")
    assert code == 2 and "one client" in err
    assert not server.seen


def test_approval_can_be_asked_for(server: Server, lethe: Any) -> None:
    assert lethe("erase", "--client", "b", "--approve-first", "--idempotency-key", "k")[0] == 0
    headers, body = sent(server)
    assert (headers["idempotency-key"], body["needs_approval"]) == ("k", True)


def test_callbacks_share_the_secret_of_the_file(server: Server, lethe: Any, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("whsec_abc\n")
    urls = ["https://a.example.org/x", "https://b.example.org/y"]
    arguments = ["--callback", urls[0], "--callback", urls[1], "--callback-secret-file", str(secret)]
    assert lethe("erase", "--client", "b", *arguments)[0] == 0
    assert sent(server)[1]["callbacks"] == [{"url": url, "secret": "whsec_abc"} for url in urls]
    assert lethe("erase", "--client", "b", "--callback", urls[0], "--callback-secret-file", "none.txt")[0] == 2


def test_without_a_client_nothing_is_sent(server: Server, lethe: Any) -> None:
    code, _, err = lethe("erase")
    assert code == 2 and "--client NAME" in err
    assert not server.seen


def test_a_client_may_file_without_reading_federations(server: Server, lethe: Any) -> None:
    server.answers["GET /v1/federations"] = [(403, {"code": "forbidden", "title": "No."})]
    assert lethe("erase", "--client", "b")[0] == 0
    assert sent(server)[1]["federation_id"] is None


def events(*statuses: str) -> str:
    lines = [samples.erasure_event(seq, status) for seq, status in enumerate(statuses, 1)]
    return "".join(f"id: {line['seq']}\ndata: {json.dumps(line)}\n\n" for line in lines)


@pytest.mark.parametrize(("last", "expected"), [("completed", 0), ("failed", 1)])
def test_watching_ends_with_the_request(server: Server, lethe: Any, last: str, expected: int) -> None:
    server.answers[f"GET /v1/erasure-requests/{ID}/events/stream"] = [(200, events("fenced", last))]
    server.answers[f"GET /v1/erasure-requests/{ID}"] = [(200, {**REQUEST, "status": last})]
    code, out, err = lethe("erase", "--client", "b", "--watch")
    assert code == expected and "fenced" in out
    assert (f"lethe certificates get {ID}" in err) == (expected == 0)


def test_a_preview_shows_each_method_and_the_choice(server: Server, lethe: Any) -> None:
    cohort = {
        "run_id": samples.id_of("run digits"),
        "run": "digits",
        "cohort": "all",
        "action": "rolled-back",
        "rounds_to_redo": 3,
        "recovery_rounds": 0,
        "client_updates_to_redo": 9,
    }
    option = {"method": "retrain", "guarantee": "exact", "applies": True, "why_not": None, "cohorts": [cohort]}
    option |= {"num_cohorts_untouched": 0, "rounds_to_redo": 3, "client_updates_to_redo": 9, "bytes_to_move": 1}
    option |= {"client_work": 9.0, "estimated_seconds": None, "initial_accuracy": None}
    other = dict.fromkeys(option) | {
        "method": "pga",
        "guarantee": "approximate",
        "applies": False,
        "why_not": "it is approximate",
        "cohorts": [],
    }
    server.answers["POST /v1/erasure-requests:preview"] = [
        (
            200,
            {
                "subjects": ["b"],
                "options": [option, other, other | {"method": "sifu"}],
                "chosen": "retrain",
                "recovery": "fedrs",
            },
        )
    ]
    code, out, err = lethe("erase", "preview", "--client", "b", "--recovery", "fedrs,alpha=0.1")
    assert code == 0 and "rolled-back" in out and "auto would use retrain, then the recovery fedrs" in err
    assert "not applicable: pga, sifu: it is approximate\n" in out
    recovery = {"method": "fedrs", "params": {"alpha": 0.1}}
    assert sent(server)[1] == {
        "federation_id": FEDERATION["id"],
        "subjects": ["b"],
        "method": "auto",
        "recovery": recovery,
    }


def test_requests_are_judged(server: Server, lethe: Any) -> None:
    for verdict in ("approve", "cancel", "deny", "retry"):
        server.answers[f"POST /v1/erasure-requests/{ID}/{verdict}"] = [(200, REQUEST)]
    assert lethe("erase", "approve", ID)[0] == lethe("erase", "cancel", ID)[0] == 0
    assert lethe("erase", "retry", ID)[0] == 0
    assert lethe("erase", "deny", ID, "--reason", "litigation hold")[0] == 0
    assert sent(server)[1] == {"reason": "litigation hold"}
    assert lethe("erase", "deny", ID)[0] == 2


def test_a_certificate_and_the_key_are_written_byte_for_byte(server: Server, lethe: Any, tmp_path: Path) -> None:
    server.answers[f"GET /v1/erasure-requests/{ID}/certificate"] = [(200, CERTIFICATE.read_text())]
    server.answers["GET /v1/erasure/discovery"] = [(200, DISCOVERY)]
    certificate, key = tmp_path / "certificate.json", tmp_path / "pub.pem"
    assert lethe("certificates", "get", ID, "-o", str(certificate))[0] == 0
    assert lethe("certificates", "key", "-o", str(key))[0] == 0
    assert certificate.read_bytes() == CERTIFICATE.read_bytes()
    assert lethe("verify", str(certificate), "--key", str(key))[0] == 0


def test_a_certificate_is_verified_without_a_network(server: Server, lethe: Any) -> None:
    code, out, _ = lethe("verify", str(CERTIFICATE), "--key", str(PUBLIC_KEY))
    assert code == 0 and "ok    signatures" in out and "note  " in out
    assert not server.seen
    code, out, _ = lethe("verify", str(CERTIFICATE), "--key", str(PUBLIC_KEY), "--json")
    assert code == 0 and json.loads(out)["valid"] is True


@pytest.mark.parametrize("position", [0, 100, -40, -1])
def test_a_changed_byte_is_reported_with_the_reason(lethe: Any, tmp_path: Path, position: int) -> None:
    data = bytearray(CERTIFICATE.read_bytes())
    data[position] ^= 1
    (tmp_path / "tampered.json").write_bytes(data)
    code, out, err = lethe("verify", str(tmp_path / "tampered.json"), "--key", str(PUBLIC_KEY))
    assert code == 1 and "FAIL" in out and "the certificate is not valid (" in err


def test_a_model_that_the_certificate_does_not_speak_of_fails(lethe: Any) -> None:
    code, _, err = lethe("verify", str(CERTIFICATE), "--key", str(PUBLIC_KEY), "--model", "sha256:" + "0" * 64)
    assert code == 1 and "none of the models" in err


def test_a_file_that_is_not_there_is_unusable_input(lethe: Any, tmp_path: Path) -> None:
    assert lethe("verify", str(tmp_path / "none.json"), "--key", str(PUBLIC_KEY))[0] == 2
    assert lethe("verify", str(CERTIFICATE), "--key", str(tmp_path / "none.pem"))[0] == 2


def test_verification_needs_neither_torch_nor_a_database(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "class Poison:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in {'torch', 'sqlalchemy', 'fastapi', 'safetensors', 'coordinator'}:\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Poison())\n"
        f"sys.argv = ['lethe', 'verify', {str(CERTIFICATE)!r}, '--key', {str(PUBLIC_KEY)!r}]\n"
        "import lethe.replaying\n"
        "from lethe.cli import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
