"""The operator's client against a small real HTTP server that answers what each test says."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from lethe import Client, LetheError, Unreachable, Unusable
from tests.support import samples
from tests.unit.cli.conftest import Server


def test_a_problem_is_printed_with_title_detail_and_next_step(server: Server, lethe: Any) -> None:
    problem = {"title": "Taken.", "detail": "there is a", "code": "name-taken", "retryable": False}
    server.answers["POST /v1/federations"] = [(409, problem)]
    code, out, err = lethe("federations", "create", "a")
    assert (code, out) == (1, "")
    assert "Taken. (name-taken, HTTP 409)" in err and "there is a" in err and "next:" in err


def test_a_problem_without_a_known_step_points_to_its_documentation(server: Server, lethe: Any) -> None:
    problem = {"title": "No.", "detail": "x", "code": "odd", "type": "/v1/problems/odd", "retryable": False}
    server.answers["GET /v1/federations"] = [(422, problem)]
    assert f"read {server.url}/v1/problems/odd" in lethe("federations", "list")[2]


def test_nobody_listening_says_how_to_start_a_server() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        with Client(url) as client, pytest.raises(Unreachable) as caught:
            client.runs.get("digits")
    assert "lethe serve" in str(caught.value.next_step)


def test_a_command_waits_for_a_coordinator_on_this_machine_and_for_the_token_that_it_writes(
    lethe: Any, server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`lethe serve &`, then at once the next line: nobody listens yet, and there is no admin.token."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LETHE_TOKEN")
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
    started: list[Server] = []

    def start(_: float) -> None:
        """In place of the pause between two looks."""
        started.append(Server(port))
        started[0].answers["GET /v1/federations"] = [(200, {"items": []})]
        started[0].on_request = lambda: write_token(tmp_path)

    monkeypatch.setattr("lethe.target.time.sleep", start)
    monkeypatch.setenv("LETHE_URL", f"http://127.0.0.1:{port}")
    code, _, err = lethe("federations", "list")
    seen = [(call, headers.get("authorization")) for call, headers, _ in started[0].seen]
    started[0].close()
    assert code == 0 and err.count("waiting up to 30 s for the coordinator") == 1
    assert seen == [("GET /healthz", None), ("GET /v1/federations", "Bearer written-at-its-start")]


def write_token(directory: Path) -> None:
    (directory / "lethe-data").mkdir(exist_ok=True)
    (directory / "lethe-data" / "admin.token").write_text("written-at-its-start\n")


def test_a_command_that_may_not_wait_says_at_once_that_nobody_listens(
    lethe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("LETHE_URL", f"http://127.0.0.1:{free.getsockname()[1]}")
        code, _, err = lethe("--wait", "0", "runs", "list")
    assert code == 1 and "lethe serve" in err and "waiting" not in err


def test_the_name_of_a_run_stands_for_the_newest_model_that_it_serves(server: Server, lethe: Any) -> None:
    run = samples.run("digits")
    server.answers["GET /v1/runs"] = [(200, {"items": [run]})]
    heads = [
        samples.checkpoint("old", is_head=False, created_at="2026-01-05T00:00:00Z"),
        samples.checkpoint("leaf", created_at="2026-01-02T00:00:00Z"),
        samples.checkpoint("root", created_at="2026-01-03T00:00:00Z"),
    ]
    server.answers[f"GET /v1/runs/{run['id']}/checkpoints"] = [(200, {"items": heads})]
    code, out, _ = lethe("checkpoints", "show", "digits", "--json")
    assert code == 0 and json.loads(out) == heads[2]
    server.answers[f"GET /v1/runs/{run['id']}/checkpoints"] = [(200, {"items": heads[:1]})]
    code, _, err = lethe("checkpoints", "lineage", "digits")
    assert code == 1 and "serves no model yet" in err


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        ([("r1", "completed", "f1"), ("r2", "completed", "f1")], "r2"),
        ([("r1", "awaiting_approval", "f1"), ("r2", "denied", "f1")], "r1"),
        ([("r1", "received", "f1"), ("r2", "executing", "f1")], None),
        ([("r1", "completed", "f1"), ("r2", "completed", "f2")], None),
    ],
    ids=["the newest", "the open one", "two open ones", "two federations"],
)
def test_the_name_of_a_client_stands_for_the_request_about_it_unless_it_is_ambiguous(
    server: Server, lethe: Any, requests: list[tuple[str, str, str]], expected: str | None
) -> None:
    items = [
        samples.erasure(
            name,
            status=status,
            federation_id=samples.id_of(federation),
            subjects=["a"],
            created_at=f"2026-01-0{number}T00:00:00Z",
        )
        for number, (name, status, federation) in enumerate(requests, 1)
    ]
    server.answers["GET /v1/erasure-requests"] = [(200, {"items": items})]
    wanted = samples.erasure(str(expected), status="cancelled")
    server.answers[f"GET /v1/erasure-requests/{wanted['id']}"] = [(200, wanted)]
    server.answers[f"POST /v1/erasure-requests/{wanted['id']}/cancel"] = [(200, wanted)]
    code, _, err = lethe("erase", "cancel", "a")
    assert (code == 0) == (expected is not None)
    assert expected is not None or ("several requests are about a" in err and "name one by its id" in err)


def test_an_address_that_is_none_is_refused() -> None:
    with Client("ftp://somewhere") as client, pytest.raises(Unusable, match="is no address"):
        client.runs.get("digits")


def test_lists_are_read_to_the_last_page_and_printed_as_json_lines(server: Server, lethe: Any) -> None:
    newer = samples.federation("a", unknown="told as it came")
    server.answers["GET /v1/federations"] = [(200, {"items": [newer], "next_cursor": "more"})]
    server.answers["GET /v1/federations?cursor=more"] = [(200, {"items": [samples.federation("b")]})]
    code, out, _ = lethe("federations", "list", "--json")
    assert code == 0
    assert [json.loads(line) for line in out.splitlines()] == [newer, samples.federation("b")]
    assert server.seen[0][1]["authorization"] == "Bearer secret"


def test_a_name_that_nothing_has_is_answered_with_the_names_there_are(server: Server, lethe: Any) -> None:
    server.answers["GET /v1/runs"] = [(200, {"items": [samples.run("digits")]})]
    code, _, err = lethe("runs", "show", "digit")
    assert code == 1 and "there is no run called digit; there is digits" in err


@pytest.mark.parametrize(
    ("command", "path", "step"),
    [
        (["runs", "show", "x"], "/v1/runs", "next:  list what there is: lethe runs list"),
        (["clients", "list"], "/v1/federations", "next:  make one: lethe federations create NAME"),
        (["clients", "list", "-f", "x"], "/v1/federations", "next:  list what there is: lethe federations list"),
    ],
)
def test_who_names_what_is_not_there_is_told_the_command_that_helps(
    server: Server, lethe: Any, command: list[str], path: str, step: str
) -> None:
    server.answers[f"GET {path}"] = [(200, {"items": []})]
    code, _, err = lethe(*command)
    assert code == 1 and step in err, err


@pytest.mark.parametrize("command", [["cancel"], ["pause"], ["show"], ["join", "-c", "a"], ["logs"]])
def test_a_name_that_several_runs_have_is_refused_with_the_candidates(
    server: Server, lethe: Any, command: list[str]
) -> None:
    ids = {name: samples.id_of(name) for name in ("old", "new", "hospitals", "banks")}
    runs = [
        samples.run("a", id=ids["old"], status="running", federation_id=ids["hospitals"]),
        samples.run("a", id=ids["new"], status="paused", federation_id=ids["banks"]),
    ]
    server.answers["GET /v1/runs"] = [(200, {"items": runs})]
    code, _, err = lethe("runs", command[0], "a", *command[1:])
    assert code == 2 and "2 runs are called a" in err and "by its id" in err
    assert all(part in err for part in (*ids.values(), "running", "paused"))
    assert [call for call, _, _ in server.seen] == ["GET /v1/runs"]


def test_checkpoints_of_an_ambiguous_run_and_an_ambiguous_client_are_refused(server: Server, lethe: Any) -> None:
    ids = [samples.id_of(number) for number in ("1", "2")]
    server.answers["GET /v1/runs"] = [(200, {"items": [samples.run("a", id=one) for one in ids]})]
    server.answers["GET /v1/federations"] = [(200, {"items": [samples.federation("f")]})]
    twice = {"items": [samples.client("a", id=one) for one in ids]}
    server.answers[f"GET /v1/federations/{samples.federation('f')['id']}/clients"] = [(200, twice)]
    assert "2 runs are called a" in lethe("checkpoints", "list", "a")[2]
    assert "2 clients are called a" in lethe("clients", "remove", "a", "--yes")[2]
    assert not [call for call, _, _ in server.seen if call.startswith("DELETE")]


def test_authorities_that_cannot_be_read_are_told(lethe: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LETHE_URL", "https://lethe.example.org")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "nowhere.pem"))
    code, _, err = lethe("runs", "list")
    assert code == 2 and "SSL_CERT_FILE" in err and "next:" in err


def test_a_file_that_cannot_be_written_is_told(server: Server, lethe: Any, tmp_path: Path) -> None:
    checkpoint = samples.checkpoint()
    server.answers[f"GET /v1/checkpoints/{checkpoint['id']}"] = [(200, checkpoint)]
    server.answers[f"GET /v1/checkpoints/{checkpoint['id']}/model"] = [(200, "bytes")]
    code, _, err = lethe("checkpoints", "download", checkpoint["id"], "-o", str(tmp_path / "nowhere" / "model"))
    assert code == 2 and "No such file or directory" in err and "next:" in err


def test_a_new_token_goes_alone_to_standard_output(server: Server, lethe: Any) -> None:
    server.answers["GET /v1/federations"] = [(200, {"items": [samples.federation("f")]})]
    server.answers[f"POST /v1/federations/{samples.federation('f')['id']}/clients"] = [(201, samples.issued("t0ken"))]
    assert lethe("clients", "add", "a")[1] == "t0ken\n"


def test_a_new_token_goes_to_a_private_file(server: Server, lethe: Any, tmp_path: Path) -> None:
    server.answers["GET /v1/federations"] = [(200, {"items": [samples.federation("f")]})]
    server.answers[f"POST /v1/federations/{samples.federation('f')['id']}/clients"] = [(201, samples.issued("t0ken"))]
    file = tmp_path / "a.token"
    code, out, _ = lethe("clients", "add", "a", "--token-out", str(file))
    assert (code, out) == (0, "")
    assert file.read_text() == "t0ken\n" and file.stat().st_mode & 0o777 == 0o600


def test_no_token_is_issued_when_it_could_not_be_written(server: Server, lethe: Any, tmp_path: Path) -> None:
    (tmp_path / "a.token").touch()
    assert lethe("clients", "add", "a", "--token-out", str(tmp_path / "a.token"))[0] == 2
    assert not server.seen


def test_an_unusable_run_file_sends_nothing(server: Server, lethe: Any, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("name: digits\nmodel: {name: mlp}\nrounds: 3")
    code, _, err = lethe("runs", "create", str(tmp_path / "run.yaml"))
    assert code == 2 and "rounds: unknown key" in err
    assert not server.seen


def test_a_dry_run_uploads_nothing_and_says_what_would_begin(server: Server, lethe: Any, tmp_path: Path) -> None:
    weights = tmp_path / "init.safetensors"
    weights.write_bytes(save({"w": np.zeros(23, np.float32)}))
    model = "{name: mlp, params: {input_shape: [4], num_classes: 2, hidden: [3]}}"
    (tmp_path / "run.yaml").write_text(f"name: digits\nmodel: {model}\ninit: {weights}")
    server.answers["GET /v1/federations"] = [(200, {"items": [samples.federation("f")]})] * 2
    server.answers["POST /v1/runs:validate"] = [(200, {"num_clients": 3, "num_cohorts": 1, "rounds_planned": 10})]
    code, out, err = lethe("runs", "create", str(tmp_path / "run.yaml"), "--dry-run")
    assert code == 0 and "can be started; nothing was changed" in err and "num_clients" in out
    assert [request.split()[0] for request, *_ in server.seen] == ["GET", "POST"]
    sent = json.loads(server.seen[-1][2])
    assert sent["to_upload"] == [sent["spec"]["init"]]
    weights.write_bytes(save({"w": np.zeros(5, np.float32)}))
    code, _, err = lethe("runs", "create", str(tmp_path / "run.yaml"), "--dry-run")
    assert code == 2 and "init has 5 parameters and model mlp" in err


def test_events_go_on_after_a_break_where_they_stopped(server: Server) -> None:
    def stream(seq: int) -> str:
        return f": hello\n\nid: {seq}\nevent: RoundOpened\ndata: {json.dumps(samples.event(seq))}\n\n"

    run = samples.run()
    server.answers[f"GET /v1/runs/{run['id']}"] = [(200, run)]
    path = f"/v1/runs/{run['id']}/events/stream"
    server.answers[f"GET {path}"] = [(200, stream(7)), (503, {"code": "unavailable"}), (200, stream(8))]
    with Client(server.url) as client:
        events = client.runs.get(run["id"]).watch()
        got = [next(events) for _ in range(4)]
    assert [None if event is None else event.seq for event in got] == [7, None, None, 8]
    assert [headers["last-event-id"] for call, headers, _ in server.seen if path in call] == ["0", "7", "7"]


def test_an_upload_is_addressed_by_its_digest(server: Server, tmp_path: Path) -> None:
    from services.core import digests

    (tmp_path / "a").write_bytes(b"abc")
    digest = digests.of_bytes(b"abc")
    server.answers[f"PUT /v1/blobs/{digest}"] = [(201, {"digest": digest, "bytes": 3})]
    server.answers["GET /v1/federations"] = [(403, {"code": "forbidden"})]
    with Client(server.url) as client:
        assert client.blobs.upload(tmp_path / "a").digest == digest
    assert server.seen[-1][2] == b"abc"


def test_a_download_that_is_refused_leaves_no_file(server: Server, tmp_path: Path) -> None:
    checkpoint = samples.checkpoint()
    server.answers[f"GET /v1/checkpoints/{checkpoint['id']}"] = [(200, checkpoint)]
    with Client(server.url) as client, pytest.raises(LetheError):
        client.checkpoints.get(checkpoint["id"]).download(tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_a_benchmark_that_is_not_there_is_answered_with_what_is(lethe: Any) -> None:
    code, _, err = lethe("bench", "nothing-like-this")
    assert code == 2 and "there is no benchmark nothing-like-this" in err


def test_clients_are_let_into_a_run(server: Server, lethe: Any) -> None:
    run = samples.run("digits")
    server.answers["GET /v1/runs"] = [(200, {"items": [run]})]
    server.answers[f"POST /v1/runs/{run['id']}/members"] = [(200, run)]
    code, _, err = lethe("runs", "join", "digits", "--client", "b", "-c", "c")
    assert code == 0 and "b, c joined run digits" in err
    assert json.loads(server.seen[-1][2]) == {"clients": ["b", "c"]}
