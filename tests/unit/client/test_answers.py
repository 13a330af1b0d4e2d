"""What the client makes of answers: objects, exceptions with the problem's code, figures, HTML, certificates."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from lethe import (
    AnswerUnreadable,
    Certificate,
    Client,
    Conflict,
    LetheError,
    NotAllowed,
    NotCompleted,
    NotFound,
    Refused,
    Unusable,
)
from lethe.client.series import as_frame, rows_of
from lethe.client.synchronous.erasures import Erasure
from lethe.client.synchronous.models import Checkpoint
from lethe.client.synchronous.runs import Run
from lethe.client.views import Issued, Preview
from tests.golden.certificate_v1 import PUBLIC_KEY
from tests.golden.certificate_v2 import CERTIFICATE, LIST, OPENING
from tests.support import samples

Answers = Callable[[httpx.Request], httpx.Response]


def client(answers: dict[str, Any] | Answers) -> Client:
    def answer(request: httpx.Request) -> httpx.Response:
        assert isinstance(answers, dict)
        found = answers[f"{request.method} {request.url.path}"]
        return found if isinstance(found, httpx.Response) else httpx.Response(200, json=found)

    transport = httpx.MockTransport(answer if isinstance(answers, dict) else answers)
    return Client("http://coordinator", "t", transport=transport)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, NotAllowed), (403, NotAllowed), (404, NotFound), (409, Conflict), (412, Conflict), (422, Refused)],
)
def test_a_refusal_is_an_exception_with_the_problems_code(status: int, kind: type[Refused]) -> None:
    problem = {"code": "odd", "title": "No.", "detail": "so it is", "type": "/v1/problems/odd", "retryable": False}
    with (
        client(lambda _: httpx.Response(status, json=problem)) as found,
        pytest.raises(LetheError) as caught,
    ):
        found.runs.get(samples.id_of("run"))
    error = caught.value
    assert type(error) is kind and isinstance(error, Refused)
    assert (error.code, error.status, error.problem) == ("odd", status, problem)
    assert "so it is" in str(error) and error.next_step == "read http://coordinator/v1/problems/odd"
    again = copy.copy(error)  # by what processes of a pool hand exceptions over with, too
    assert (again.code, again.status) == ("odd", status)


def test_every_exception_is_one_of_ours() -> None:
    assert all(issubclass(kind, LetheError) for kind in (AnswerUnreadable, NotCompleted, Refused, Unusable))


def test_fields_of_a_newer_coordinator_do_not_matter_and_are_in_the_document() -> None:
    newer = samples.run(novelty=1, spec={"name": "digits", "training": {"algorithm": "not-installed-here", "x": 1}})
    with client({f"GET /v1/runs/{newer['id']}": newer}) as found:
        run = found.runs.get(newer["id"])
    assert run.document["novelty"] == 1 and run.spec["training"]["algorithm"] == "not-installed-here"


def test_an_answer_that_is_none_is_told() -> None:
    id = samples.id_of("run digits")
    with (
        client({f"GET /v1/runs/{id}": {"id": id}}) as found,
        pytest.raises(AnswerUnreadable, match="Run cannot be read"),
    ):
        found.runs.get(id)
    with (
        client(lambda _: httpx.Response(200, text="<html>")) as found,
        pytest.raises(AnswerUnreadable, match="not JSON"),
    ):
        found.runs.get(id)


def test_a_token_comes_from_the_environment_or_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    seen: list[str | None] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers.get("authorization"))
        return httpx.Response(200, json={"status": "ok"})

    for name in ("LETHE_TOKEN", "LETHE_TOKEN_FILE", "LETHE_URL"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "t").write_text("of-a-file\n")
    Client(transport=httpx.MockTransport(answer)).health()
    monkeypatch.setenv("LETHE_TOKEN", "of-the-environment")
    Client(transport=httpx.MockTransport(answer)).health()
    Client(token_file="t", transport=httpx.MockTransport(answer)).health()
    assert seen == [None, "Bearer of-the-environment", "Bearer of-a-file"]
    with pytest.raises(Unusable, match="cannot read the token file"):
        Client(token_file="nowhere")


def stream(*events: dict[str, Any]) -> httpx.Response:
    return httpx.Response(200, text="".join(f"data: {json.dumps(event)}\n\n" for event in events))


@pytest.mark.parametrize(("status", "ends_well"), [("completed", True), ("failed", False)])
def test_waiting_for_a_run_gives_it_or_says_how_it_ended(status: str, ends_well: bool) -> None:
    run = samples.run()
    path = f"GET /v1/runs/{run['id']}"
    ended = {**run, "status": status, "reason": "why"}
    with client({path: ended, f"{path}/events/stream": stream(samples.event(1, "RunEnded", status=status))}) as found:
        handle = Run.read(run, found._connection)
        if ends_well:
            assert handle.wait().status == "completed"
        else:
            with pytest.raises(NotCompleted, match="failed: why") as caught:
                handle.wait()
            assert caught.value.status == "failed"


@pytest.mark.parametrize("status", ["completed", "denied", "requires_action", "awaiting_approval"])
def test_waiting_for_a_request_ends_when_somebody_must_act(status: str) -> None:
    request = samples.erasure("r1")
    path = f"GET /v1/erasure-requests/{request['id']}"
    events = stream(samples.erasure_event(1, "fenced"), samples.erasure_event(2, status))
    with client({path: {**request, "status": status}, f"{path}/events/stream": events}) as found:
        handle = Erasure.read(request, found._connection)
        if status == "completed":
            assert handle.wait().status == status
        else:
            with pytest.raises(NotCompleted) as caught:
                handle.wait()
            assert caught.value.status == status


def test_figures_are_rows_and_a_frame_where_pandas_is() -> None:
    models = [
        Checkpoint.read(
            samples.checkpoint("b", round=2, created_at="2026-01-02T00:00:00Z", metrics={"validation_accuracy": 0.75})
        ),
        Checkpoint.read(samples.checkpoint("a", round=1, metrics={"validation_accuracy": 0.5, "validation_loss": 1.5})),
    ]
    rows = rows_of(models)
    assert [(row["round"], row["accuracy"], row["loss"]) for row in rows] == [(1, 0.5, 1.5), (2, 0.75, None)]
    assert list(as_frame(rows)["accuracy"]) == [0.5, 0.75] and "validation_loss" in as_frame(rows).columns


def test_without_pandas_figures_are_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lethe.client.series.find_spec", lambda name: None)
    assert as_frame([{"round": 1}]) == [{"round": 1}]


def test_html_shows_names_as_text_and_tokens_not_at_all() -> None:
    html = Run.read(samples.run(reason="<script>alert(1)</script>"))._repr_html_()
    assert "<script>" not in html and "&lt;script&gt;" in html
    issued = Issued.read(samples.issued("t0ken"))
    assert "t0ken" not in issued._repr_html_() + repr(issued) + str(issued) and issued.token == "t0ken"
    preview = Preview.read({"subjects": ["b"], "options": [], "chosen": "retrain", "recovery": "plain"})
    assert "retrain" in preview._repr_html_()


def test_a_certificate_is_verified_offline(tmp_path: Path) -> None:
    certificate = Certificate(CERTIFICATE.read_bytes(), LIST.read_bytes(), None, OPENING.read_bytes())
    verdict = certificate.verify(PUBLIC_KEY)
    assert verdict.valid and verdict.complete
    assert certificate.verify(PUBLIC_KEY.read_text()).valid
    subject = json.loads(OPENING.read_bytes())["clients"][0]
    assert certificate.verify(PUBLIC_KEY, client=subject).valid
    assert not certificate.verify(PUBLIC_KEY, client="somebody-else").valid
    assert not Certificate(CERTIFICATE.read_bytes().replace(b"a", b"b", 1)).verify(PUBLIC_KEY).valid
    assert certificate.verify(PUBLIC_KEY).statement is not None and "predicate" in certificate.statement
    certificate.save(tmp_path / "c.json")
    assert (tmp_path / "c.list.jsonl").read_bytes() == LIST.read_bytes()
    assert "not verified here" in certificate._repr_html_()
