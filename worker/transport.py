"""The connection to the coordinator: the only module that knows httpx.

Every call is idempotent at the coordinator, so every call may be sent again. Calls named below without "once" insist:
they come back with an answer or a refusal (worker/answers.py), however long the coordinator is away; cancel them to
give up. Heartbeats have a connection pool of their own, so that a long upload never looks like death.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path
from typing import Final, TypeVar
from uuid import UUID

import httpx
from pydantic import ValidationError

from services.core.private_files import create
from services.wire.message import Message
from services.wire.v1.exclusions import Exclusions, ExclusionsAccepted, ExclusionsAcknowledgement
from services.wire.v1.superseded_models import SUPERSEDED_HEADER, ModelsDropped, ModelsDroppedAccepted, SupersededModels
from services.wire.v1.work import (
    MOST_RESULT_BYTES,
    RESULT_HEADER,
    BlobInfo,
    Claim,
    Failure,
    FailureReply,
    Heartbeat,
    HeartbeatReply,
    Session,
    SessionRequest,
    Submission,
    SubmissionReply,
    TaskGrant,
)
from worker.answers import Refused, TryLater, refusal
from worker.backoff import Backoff
from worker.settings import OptionsUnusable

PIECE_BYTES: Final = 1 << 20
PROBE_FROM_BYTES: Final = 8 << 20
"""The size from which on asking what the coordinator already has costs less than a needless upload."""

_REQUEST_TIMEOUT: Final = httpx.Timeout(60.0, connect=10.0, pool=None)
_HEARTBEAT_TIMEOUT: Final = httpx.Timeout(10.0, connect=5.0, pool=None)
_POLL_SLACK_S: Final = 20.0
_IDLE_S: Final = 4.0
"""Below the five seconds after which common servers close an idle connection, so that we close first."""

Reply = TypeVar("Reply", bound=Message)
T = TypeVar("T")


@lru_cache(maxsize=8)
def _trust(ca_file: Path | None) -> ssl.SSLContext:
    """SSL_CERT_FILE, SSL_CERT_DIR or the bundled authorities, and those of `ca_file` on top. Costly: made once."""
    context = httpx.create_ssl_context(trust_env=True)
    if ca_file is not None:
        context.load_verify_locations(cafile=str(ca_file))
    return context


class Transport:
    def __init__(
        self,
        coordinator: str,
        token: str,
        *,
        ca_file: Path | None = None,
        backoff: Backoff | None = None,
        on_retry: Callable[[TryLater, float], None] = lambda later, delay_s: None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`on_retry` hears of each failed attempt and the delay before the next one. Raises OptionsUnusable."""
        self.address = coordinator.rstrip("/")
        self.backoff = backoff if backoff is not None else Backoff()
        self.on_retry = on_retry
        self._sleep = sleep
        self.superseded = asyncio.Event()
        """Set by each answer that says that superseded models have to go from the cache."""
        self.superseded_at: datetime | None = None
        """The fence that the last such answer named."""

        def connect(timeout: httpx.Timeout) -> httpx.AsyncClient:
            return httpx.AsyncClient(
                base_url=self.address,
                headers={"Authorization": f"Bearer {token}", "User-Agent": "lethe-worker"},
                verify=_trust(ca_file),
                timeout=timeout,
                limits=httpx.Limits(keepalive_expiry=_IDLE_S),
                trust_env=True,
            )

        try:
            self._requests = connect(_REQUEST_TIMEOUT)
            self._heartbeats = connect(_HEARTBEAT_TIMEOUT)
        except OSError as error:
            source = f"the CA file {ca_file}" if ca_file is not None else "SSL_CERT_FILE or SSL_CERT_DIR"
            raise OptionsUnusable(f"certificate authorities cannot be read from {source}: {error}") from error
        except (httpx.InvalidURL, ValueError) as error:
            raise OptionsUnusable(f"the coordinator's address or the proxy's is no address: {error}") from error

    async def aclose(self) -> None:
        await self._requests.aclose()
        await self._heartbeats.aclose()

    # messages

    async def open_session_once(self, request: SessionRequest) -> Session:
        return await self._exchange(self._requests, "POST", "/v1/sessions", request, Session)

    async def claim_once(self, wait_s: float) -> list[TaskGrant]:
        """Wait up to `wait_s` for work; empty when there is none. Not repeated here, because after a broken
        connection the caller must open a session first: a task may have been handed out with the lost answer."""
        response = await self._send(
            self._requests,
            "POST",
            "/v1/tasks/claim",
            headers={"Prefer": f"wait={wait_s:g}"},
            timeout=httpx.Timeout(wait_s + _POLL_SLACK_S, connect=10.0, pool=None),
        )
        return [] if response.status_code == HTTPStatus.NO_CONTENT else _read(response, Claim).tasks

    async def exclusions(self) -> Exclusions:
        """What this client must leave out."""

        async def ask() -> Exclusions:
            return _read(await self._send(self._requests, "GET", "/v1/exclusions"), Exclusions)

        return await self._insist(ask)

    async def acknowledge(self, acknowledgement: ExclusionsAcknowledgement) -> None:
        path = "/v1/exclusions/acknowledgement"
        await self._insist(lambda: self._exchange(self._requests, "PUT", path, acknowledgement, ExclusionsAccepted))

    async def superseded_models_once(self) -> SupersededModels:
        return _read(await self._send(self._requests, "GET", "/v1/superseded-models"), SupersededModels)

    async def confirm_dropped_once(self, dropped: ModelsDropped) -> None:
        await self._exchange(self._requests, "PUT", "/v1/superseded-models/dropped", dropped, ModelsDroppedAccepted)

    async def heartbeat_once(self, task_id: UUID, heartbeat: Heartbeat) -> HeartbeatReply:
        path = f"/v1/tasks/{task_id}/heartbeat"
        return await self._exchange(self._heartbeats, "POST", path, heartbeat, HeartbeatReply)

    async def submit(self, task_id: UUID, submission: Submission) -> SubmissionReply:
        path = f"/v1/tasks/{task_id}/result"
        return await self._insist(lambda: self._exchange(self._requests, "PUT", path, submission, SubmissionReply))

    async def fail(self, task_id: UUID, failure: Failure) -> FailureReply:
        path = f"/v1/tasks/{task_id}/failure"
        return await self._insist(lambda: self._exchange(self._requests, "POST", path, failure, FailureReply))

    # blobs

    async def download(self, digest: str, num_bytes: int, path: Path) -> None:
        """Fetch the blob into `path` (overwritten). A broken download goes on where it broke; bytes of another
        length or digest are refused and removed."""
        received = _Received(path, num_bytes)
        try:
            await self._insist(lambda: self._download_rest(digest, received), progress=lambda: received.num_bytes)
            if received.digest() != digest:
                raise Refused("digest-mismatch", f"the bytes received for {digest} have another digest")
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        finally:
            received.close()

    async def _download_rest(self, digest: str, received: _Received) -> None:
        headers = {"Accept-Encoding": "identity"}
        if received.num_bytes:
            headers["Range"] = f"bytes={received.num_bytes}-"
        with _transport_errors():
            async with self._requests.stream("GET", f"/v1/blobs/{digest}", headers=headers) as response:
                await _raise_for_refusal(response)
                if response.status_code != HTTPStatus.PARTIAL_CONTENT:
                    received.start_over()
                async for piece in response.aiter_raw():
                    received.write(piece)
        if received.num_bytes < received.expected_bytes:
            raise TryLater("cut-short", "the download ended early", answered=False)

    async def upload(
        self, digest: str, path: Path, task_id: UUID, *, maybe_started: bool = False, result: Submission | None = None
    ) -> bool:
        """Bring the file to the coordinator; what it already has is never sent again. `maybe_started`: an earlier
        life of this agent may have sent some of it. Returns whether the `result` was accepted with it; if not, it is
        to be submitted."""
        size = path.stat().st_size
        ask_first = maybe_started or size >= PROBE_FROM_BYTES
        upload = _Upload(digest, path, size, {"Lethe-Task": str(task_id)}, _header(result), ask_first=ask_first)
        try:
            await self._insist(lambda: self._upload_rest(upload), progress=lambda: upload.stored_bytes)
        except Refused as refused:
            if refused.code != "digest-mismatch" or not upload.resumed:
                raise
            upload.ask_first = False  # the part stored earlier was damaged: send everything, once
            await self._insist(lambda: self._upload_rest(upload), progress=lambda: upload.stored_bytes)
        return upload.is_submitted

    async def _upload_rest(self, upload: _Upload) -> None:
        url = f"/v1/blobs/{upload.digest}"
        stored_bytes = await self._part_stored(upload) if upload.ask_first else 0
        upload.ask_first = True  # whatever happens from here on, only the coordinator knows what arrived
        if stored_bytes is None:
            return
        upload.stored_bytes = stored_bytes
        if not upload.stored_bytes:
            headers = {"Content-Type": "application/octet-stream", "Content-Length": str(upload.size)}
            headers |= {**upload.task, **upload.result}
            response = await self._send(self._requests, "PUT", url, headers=headers, content=upload.pieces())
            upload.is_submitted = bool(upload.result) and _read(response, BlobInfo).submission is not None
            return
        while True:  # also with nothing left to send: the coordinator may have died between the last byte and its check
            upload.resumed = True
            headers = {
                **upload.task,
                "Content-Type": "application/partial-upload",
                "Content-Length": str(upload.size - upload.stored_bytes),
                "Upload-Offset": str(upload.stored_bytes),
                "Upload-Length": str(upload.size),
            }
            response = await self._send(self._requests, "PATCH", url, headers=headers, content=upload.pieces())
            if response.status_code != HTTPStatus.NO_CONTENT:
                return
            upload.stored_bytes = _offset(response)

    async def _part_stored(self, upload: _Upload) -> int | None:
        """How much of an unfinished upload the coordinator has; None when the blob is there and checked."""
        try:
            head = await self._send(self._requests, "HEAD", f"/v1/blobs/{upload.digest}", headers=upload.task)
        except Refused as refused:
            if refused.code == "http-404":  # an answer to HEAD has no body, hence no problem code
                return 0
            raise
        return None if head.status_code == HTTPStatus.OK else _offset(head)

    # sending

    async def _insist(self, attempt: Callable[[], Awaitable[T]], progress: Callable[[], int] = lambda: 0) -> T:
        """Repeat while the coordinator says later or says nothing; an attempt that got further resets the back-off."""
        failures, furthest = 0, progress()
        while True:
            try:
                return await attempt()
            except TryLater as later:
                if progress() > furthest:
                    failures, furthest = 0, progress()
                delay_s = self.backoff.delay(failures, later.retry_after_s)
                failures += 1
                self.on_retry(later, delay_s)
            await self._sleep(delay_s)

    async def _exchange(
        self, client: httpx.AsyncClient, method: str, path: str, message: Message, reply: type[Reply]
    ) -> Reply:
        headers = {"Content-Type": "application/json"}
        return _read(await self._send(client, method, path, headers=headers, content=message.model_dump_json()), reply)

    async def _send(
        self,
        client: httpx.AsyncClient,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        content: str | AsyncIterator[bytes] | None = None,
        timeout: httpx.Timeout | None = None,
    ) -> httpx.Response:
        with _transport_errors():
            response = await client.request(
                method,
                path,
                headers=headers,
                content=content,
                timeout=timeout if timeout is not None else client.timeout,
            )
            await _raise_for_refusal(response)
        if said := response.headers.get(SUPERSEDED_HEADER):
            with contextlib.suppress(ValueError):  # not of our making; the coordinator's own would be read
                self.superseded_at = datetime.fromisoformat(said)
                self.superseded.set()
        return response


class _Received:
    """A download in progress: the file so far, its length and its running hash."""

    def __init__(self, path: Path, expected_bytes: int) -> None:
        self.expected_bytes = expected_bytes
        self.num_bytes = 0
        self._file = create(path)
        self._hash = hashlib.sha256()

    def start_over(self) -> None:
        self._file.seek(0)
        self._file.truncate()
        self.num_bytes = 0
        self._hash = hashlib.sha256()

    def write(self, piece: bytes) -> None:
        if self.num_bytes + len(piece) > self.expected_bytes:
            raise Refused("too-large", f"the blob is longer than the {self.expected_bytes} bytes announced")
        self._file.write(piece)
        self._hash.update(piece)
        self.num_bytes += len(piece)

    def digest(self) -> str:
        return "sha256:" + self._hash.hexdigest()

    def close(self) -> None:
        self._file.close()


class _Upload:
    """An upload in progress. `stored_bytes` is what the coordinator last said it has."""

    def __init__(
        self,
        digest: str,
        path: Path,
        size: int,
        task: Mapping[str, str],
        result: Mapping[str, str],
        *,
        ask_first: bool,
    ) -> None:
        """`task` and `result`: the headers that name the one and hand in the other."""
        self.digest = digest
        self.task = task
        self.result = result
        self.is_submitted = False
        self.size = size
        self.ask_first = ask_first
        self.resumed = False
        self.stored_bytes = 0
        self._path = path

    async def pieces(self) -> AsyncIterator[bytes]:
        with self._path.open("rb") as file:
            file.seek(self.stored_bytes)
            while piece := file.read(PIECE_BYTES):
                yield piece


def _header(result: Submission | None) -> dict[str, str]:
    """None where it would be too long: then it is submitted after the upload."""
    text = "" if result is None else result.model_dump_json()
    return {RESULT_HEADER: text} if text and len(text) <= MOST_RESULT_BYTES and text.isascii() else {}


def _offset(response: httpx.Response) -> int:
    try:
        return int(response.headers["Upload-Offset"])
    except (KeyError, ValueError) as error:
        raise TryLater("unreadable-answer", "the coordinator did not say how much of the upload it has") from error


def _read(response: httpx.Response, reply: type[Reply]) -> Reply:
    try:
        return reply.model_validate_json(response.content)
    except ValidationError as error:
        # Usually the page of a proxy in between; if it is a newer coordinator, the log says so at every attempt.
        raise TryLater("unreadable-answer", f"not a {reply.__name__}: {error.error_count()} errors") from error


async def _raise_for_refusal(response: httpx.Response) -> None:
    if response.status_code < HTTPStatus.MULTIPLE_CHOICES:
        return
    if response.is_redirect:
        raise Refused("redirected", f"the coordinator's address redirects to {response.headers.get('Location')}")
    raise refusal(
        response.status_code,
        response.headers.get("Content-Type", ""),
        await response.aread(),
        retry_after=response.headers.get("Retry-After"),
        now=datetime.now(UTC),
    )


@contextlib.contextmanager
def _transport_errors() -> Iterator[None]:
    try:
        yield
    except httpx.TransportError as error:
        raise TryLater("unreachable", f"{type(error).__name__}: {error}", answered=False) from error
