"""What both connections share: how a request is addressed, and what its answer means."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from lethe.errors import AnswerUnreadable, LetheError, Refused, Unreachable, Unusable

PIECE_BYTES: Final = 1 << 20
TIMEOUT_S: Final = 30.0
SILENCE_S: Final = 60.0
"""An event stream that says nothing for so long, not even a keep-alive, is opened anew."""
TRANSIENT: Final = (429, 502, 503, 504)
LOOPBACK: Final = {"127.0.0.1", "localhost", "::1"}
EXAMPLE_URL: Final = "https://lethe.example.org"


class AuthoritiesUnreadable(Unusable):
    """The files that the environment names as certificate authorities cannot be read."""


class StreamOver(Exception):
    """It has ended, and every event of it was seen."""


def options(url: str, token: str | None) -> dict[str, Any]:
    """Options of the HTTP client. Proxies and their certificates come from the environment, but never stand before this
    very machine."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return {"base_url": url, "headers": headers, "timeout": TIMEOUT_S, "trust_env": not is_this_machine(url)}


class Opening:
    """Around the making of the HTTP client: what is wrong with its address or its authorities."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, httpx.InvalidURL | ValueError):
            raise Unusable(f"{self._url} is no address: {error}", next_step=f"write it like {EXAMPLE_URL}") from error
        if isinstance(error, OSError):
            raise AuthoritiesUnreadable(
                f"certificate authorities cannot be read: {error}",
                next_step="correct or unset SSL_CERT_FILE and SSL_CERT_DIR",
            ) from error


class Asking:
    """Around a request: failures of the connection are told in our words."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, httpx.UnsupportedProtocol | httpx.InvalidURL):
            raise Unusable(f"{self._url} is no address: {error}", next_step=f"write it like {EXAMPLE_URL}") from error
        if isinstance(error, httpx.TransportError):
            raise Unreachable(self._url, error) from error


def arguments(query: Mapping[str, Any] | None, body: Any, headers: Mapping[str, str] | None) -> dict[str, Any]:
    """Arguments of one request; what is None is left out."""
    found: dict[str, Any] = {"headers": dict(headers or {})}
    if query is not None:
        found["params"] = {key: _text(value) for key, value in query.items() if value is not None}
    if body is not None:
        found["content"] = json.dumps(_plain(body))
        found["headers"]["Content-Type"] = "application/json"
    return found


def _text(value: Any) -> str | list[str]:
    return list(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _plain(body: Any) -> Any:
    """A value as JSON; of a message what was set in it, so that the coordinator's own defaults count."""
    if isinstance(body, BaseModel):
        return body.model_dump(mode="json", exclude_unset=True)
    return to_jsonable_python(body)


def document_of(url: str, response: httpx.Response) -> Any:
    """The JSON of an answer that was read; None of an empty one."""
    if response.is_error:
        raise problem_of(url, response)
    if response.status_code == 204 or not response.content:
        return None
    try:
        return response.json()
    except ValueError as error:
        raise AnswerUnreadable(f"{url} answered {response.status_code} but not JSON: is it a coordinator?") from error


def problem_of(url: str, response: httpx.Response) -> LetheError:
    try:
        problem = response.json()
    except ValueError:
        problem = {"title": response.reason_phrase, "detail": response.text[:300]}
    return Refused.by_status(
        url, response.status_code, problem if isinstance(problem, dict) else {"detail": str(problem)}
    )


def is_this_machine(url: str) -> bool:
    return urlsplit(url).hostname in LOOPBACK


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()


def event_in(line: str) -> dict[str, Any] | None:
    """The event that a line of a stream carries, if it does."""
    if not line.startswith("data:"):
        return None
    event: dict[str, Any] = json.loads(line.removeprefix("data:"))
    return event


def pauses() -> Iterator[float]:
    """Seconds between attempts to open a stream again."""
    pause_s = 0.1
    while True:
        yield pause_s
        pause_s = min(2.0, pause_s * 2)
