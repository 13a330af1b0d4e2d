"""What `lethe erase list`, `approve`, `deny`, `extend`, `note`, `lethe me` and `lethe federations four-eyes` send and print."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.support import samples
from tests.unit.cli.conftest import Server

WEBER = {"credential_id": samples.id_of("credential"), "role": "compliance", "label": "Dr. Weber", "person": None}
REQUEST = samples.erasure("r1", status="awaiting_approval", filed_by=WEBER, needs_approval=True)
ID = REQUEST["id"]
PATH = f"/v1/erasure-requests/{ID}"


@pytest.fixture
def server(server: Server) -> Server:
    server.answers[f"GET {PATH}"] = [(200, REQUEST)]
    for verdict in ("approve", "deny", "extend"):
        server.answers[f"POST {PATH}/{verdict}"] = [(200, REQUEST)]
    return server


def sent(server: Server) -> Any:
    return json.loads(server.seen[-1][2])


def test_filters_and_the_order_are_sent(server: Server, lethe: Any) -> None:
    code, _, _ = lethe(
        *("erase", "list", "--status", "fenced", "--status", "received", "--client", "b"),
        *("--due-before", "2030-01-31", "--awaiting-me", "--sort", "deadline"),
    )
    assert code != 0, "this server has no such list"
    query = parse_qs(urlsplit(server.seen[-1][0].split(" ")[1]).query)
    assert query.pop("due_before")[0].startswith("2030-01-31T23:59:59")
    assert query == {
        "status": ["fenced", "received"],
        "subject": ["b"],
        "awaiting_my_approval": ["True"],
        "sort": ["deadline"],
    }


def test_a_list_says_who_filed(server: Server, lethe: Any) -> None:
    server.answers["GET /v1/erasure-requests"] = [(200, {"items": [REQUEST]})]
    code, out, _ = lethe("erase", "list")
    assert code == 0 and "Weber" in out


def test_a_request_is_shown_with_those_who_dealt_with_it(server: Server, lethe: Any) -> None:
    at = samples.AT
    extension = {"until": at, "reason": "paused", "at": at, "by": WEBER, "deadline_before": at}
    server.answers[f"GET {PATH}"] = [(200, {**REQUEST, "extension": extension, "decided_by": {**WEBER, "label": None}})]
    code, out, _ = lethe("erase", "show", ID)
    assert code == 0 and "Dr. Weber (compliance)" in out and "by Dr. Weber (compliance): paused" in out
    assert f"{WEBER['credential_id']} (compliance)" in out


def test_decisions_carry_their_reasons(server: Server, lethe: Any) -> None:
    assert lethe("erase", "approve", ID)[0] == 0 and sent(server) == {}
    assert lethe("erase", "approve", ID, "--reason", "signed")[0] == 0 and sent(server) == {"reason": "signed"}
    assert lethe("erase", "deny", ID, "--reason", "hold")[0] == 0 and sent(server) == {"reason": "hold"}
    code, _, err = lethe("erase", "extend", ID, "--until", "2030-01-31", "--reason", "paused")
    assert code == 0 and "due 2026-01-31" in err
    assert sent(server)["until"].startswith("2030-01-31T23:59:59") and sent(server)["reason"] == "paused"
    assert lethe("erase", "extend", ID, "--until", "later", "--reason", "paused")[0] == 2


def test_the_filer_is_told_who_has_to_approve(server: Server, lethe: Any) -> None:
    problem = {"code": "four-eyes", "title": "Somebody else …", "detail": "somebody else has to decide it"}
    server.answers[f"POST {PATH}/approve"] = [(403, problem)]
    code, _, err = lethe("erase", "approve", ID)
    assert code == 1 and "somebody else has to decide it" in err


def test_notes_are_written_and_listed(server: Server, lethe: Any) -> None:
    note = {"id": samples.id_of("note"), "at": samples.AT, "by": WEBER, "text": "by letter"}
    server.answers[f"POST {PATH}/notes"] = [(201, note)]
    server.answers[f"GET {PATH}/notes"] = [(200, {"items": [note, {**note, "text": None, "by": None}]})]
    code, out, _ = lethe("erase", "note", ID, "by letter", "--json")
    assert code == 0 and json.loads(out) == note and sent(server) == {"text": "by letter"}
    code, out, _ = lethe("erase", "note", ID)
    assert code == 0 and "by letter" in out and "(erased)" in out


def test_who_am_i(server: Server, lethe: Any) -> None:
    me = {**WEBER, "federation_id": None, "client_id": None, "client_name": None, "session": False, "expires_at": None}
    server.answers["GET /v1/me"] = [(200, {**me, "can": ["read", "approve"]})]
    code, out, _ = lethe("me")
    assert code == 0 and "Dr. Weber" in out and "read, approve" in out


def test_the_rule_of_a_federation_is_changed(server: Server, lethe: Any) -> None:
    found = samples.federation("f")
    server.answers["GET /v1/federations"] = [(200, {"items": [found]})]
    server.answers[f"PATCH /v1/federations/{found['id']}"] = [(200, {**found, "four_eyes": "all"})]
    code, out, _ = lethe("federations", "four-eyes", "all", "--json")
    assert code == 0 and json.loads(out)["four_eyes"] == "all" and sent(server) == {"four_eyes": "all"}
