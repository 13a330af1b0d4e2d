"""What the coordinator's refusals mean to an agent.

CoordinatorRefused
├── Dropped       the work is no longer wanted: drop it, claim again
├── Stopped       this agent must stop
├── LedgerBehind  samples must be left out and acknowledged before there is any work
├── BlobMissing   a digest it should have is not there: upload again, submit again
├── TryLater      nothing is wrong with the request: back off, ask again (also: nobody answered)
└── Refused       any other 4xx: asking again would not help
"""

from __future__ import annotations

from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Final

from pydantic import ValidationError

from services.wire.v1.resources import Problem

DROP_CODES: Final = frozenset({"lease-lost", "epoch-fenced", "round-closed", "too-stale", "already-submitted"})
STOP_CODES: Final = frozenset({"client-removed", "client-erased", "unauthenticated", "forbidden", "protocol-too-old"})
LATER_STATUSES: Final = frozenset({408, 425, 429, 500, 502, 503, 504, 507})


class CoordinatorRefused(Exception):
    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


class Dropped(CoordinatorRefused):
    pass


class Stopped(CoordinatorRefused):
    pass


class LedgerBehind(CoordinatorRefused):
    pass


class BlobMissing(CoordinatorRefused):
    pass


class TryLater(CoordinatorRefused):
    """`answered` is False when the connection broke: the coordinator may or may not have acted on the request."""

    def __init__(self, code: str, detail: str, *, retry_after_s: float | None = None, answered: bool = True) -> None:
        super().__init__(code, detail)
        self.retry_after_s = retry_after_s
        self.answered = answered


class Refused(CoordinatorRefused):
    pass


def refusal(
    status: int, media_type: str, body: bytes, *, retry_after: str | None = None, now: datetime
) -> CoordinatorRefused:
    """The exception for an answer of 300 or above. `retry_after` is the raw header."""
    code, detail, retryable = f"http-{status}", body[:200].decode("utf-8", "replace").strip(), False
    if media_type.partition(";")[0].strip().lower() == "application/problem+json":
        try:
            problem = Problem.model_validate_json(body)
            code, detail, retryable = problem.code, problem.detail, problem.retryable
        except ValidationError:
            detail = "the problem document cannot be read"
    if code in DROP_CODES:
        return Dropped(code, detail)
    if code in STOP_CODES:
        return Stopped(code, detail)
    if code == "ledger-behind":
        return LedgerBehind(code, detail)
    if code == "blob-missing":
        return BlobMissing(code, detail)
    if retryable or status in LATER_STATUSES or code == "upload-offset-mismatch":
        return TryLater(code, detail, retry_after_s=seconds_to_wait(retry_after, now))
    return Refused(code, detail)


def seconds_to_wait(retry_after: str | None, now: datetime) -> float | None:
    """RFC 9110 Retry-After: seconds, or an HTTP date."""
    if retry_after is None:
        return None
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        pass
    try:
        return max(0.0, (parsedate_to_datetime(retry_after) - now).total_seconds())
    except (ValueError, TypeError):
        return None
