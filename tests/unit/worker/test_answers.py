from __future__ import annotations

from datetime import UTC, datetime

import pytest

from services.core.errors import CODES
from worker.answers import DROP_CODES, STOP_CODES, Refused, TryLater, refusal, seconds_to_wait

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)


def test_every_code_that_an_agent_obeys_is_in_the_catalogue() -> None:
    assert DROP_CODES | STOP_CODES | {"blob-missing", "upload-offset-mismatch", "digest-mismatch"} <= CODES.keys()


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504, 507])
def test_a_server_in_trouble_is_asked_again_even_without_a_problem_document(status: int) -> None:
    assert isinstance(refusal(status, "text/html", b"<html>", now=NOW), TryLater)


def test_a_page_of_a_proxy_is_no_order_to_stop() -> None:
    assert isinstance(refusal(403, "text/html", b"<html>blocked", now=NOW), Refused)


def test_an_unreadable_problem_keeps_its_status() -> None:
    assert refusal(404, "application/problem+json", b"{", now=NOW).code == "http-404"


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("5", 5.0),
        ("Thu, 01 Jan 2026 12:00:30 GMT", 30.0),
        ("Thu, 01 Jan 2026 11:00:00 GMT", 0.0),
        ("soon", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(header: str | None, seconds: float | None) -> None:
    assert seconds_to_wait(header, NOW) == seconds
