"""A coordinator for tests of the worker: real HTTP on a loopback port, simple state, and a script of misbehaviour.

`script["submit"].append(Refuse("lease-lost", 409))` makes the next submission fail that way; operations without a
script entry behave well. Operations: session, claim, heartbeat, submit, fail, put, patch, head, get.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Self
from uuid import UUID

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from services.training.local_spec import LocalTraining
from services.wire.v1.runs import ModelSpec
from services.wire.v1.work import Failure, Heartbeat, SessionRequest, Submission, TaskGrant

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


@dataclass(frozen=True)
class Refuse:
    code: str
    status: int
    retry_after: str | None = None


@dataclass(frozen=True)
class Cut:
    """Break the connection after so many bytes of body, received (put, patch) or sent (get)."""

    after_bytes: int = 0


@dataclass(frozen=True)
class Slow:
    seconds: float


@dataclass(frozen=True)
class Corrupt:
    """Answer a get with the last byte flipped."""


Act = Refuse | Cut | Slow | Corrupt


@dataclass
class Call:
    operation: str
    client: str
    at: float
    headers: dict[str, str] = field(repr=False)
    body_bytes: int = 0


class ScriptedCoordinator:
    def __init__(self, *clients: str, heartbeat_every_s: float = 0.05, max_wait_s: float = 1.0) -> None:
        """Each client's token is `token-of-<name>`."""
        self.clients = clients or ("alice",)
        self.max_wait_s = max_wait_s
        self.heartbeat_every_s = heartbeat_every_s
        self.script: dict[str, deque[Act]] = defaultdict(deque)
        self.calls: list[Call] = []
        self.blobs: dict[str, bytes] = {}
        self.parts: dict[str, bytearray] = {}
        self.offers: dict[str, deque[list[TaskGrant]]] = defaultdict(deque)
        self.leased: dict[str, dict[UUID, TaskGrant]] = defaultdict(dict)
        self.sessions: list[SessionRequest] = []
        self.heartbeats: list[tuple[UUID, Heartbeat]] = []
        self.submissions: list[tuple[UUID, Submission]] = []
        self.failures: list[tuple[UUID, Failure]] = []
        self.cancelled: set[UUID] = set()
        self.takes_results = False
        """Whether an upload may bring its result; coordinators of earlier releases do not look at it."""
        self._port = 0
        self._json = self._json_app()

    # what tests say and ask

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def token(self, client: str) -> str:
        return f"token-of-{client}"

    def store(self, blob: bytes) -> str:
        digest = "sha256:" + hashlib.sha256(blob).hexdigest()
        self.blobs[digest] = blob
        return digest

    def offer(self, client: str, *grants: TaskGrant) -> None:
        """What one claim of the client will bring."""
        self.offers[client].append(list(grants))

    def grant(
        self,
        number: int,
        weights: bytes,
        *,
        kind: str = "train",
        model: ModelSpec | None = None,
        local: LocalTraining | None = None,
        attempt: int = 1,
    ) -> TaskGrant:
        return TaskGrant(
            task_id=UUID(int=number),
            kind=kind,
            run_id=UUID(int=10_000),
            run_name="a-run",
            cohort="all",
            epoch=0,
            round=number,
            attempt=attempt,
            lease_token=f"lease-{number}",
            lease_expires_at=datetime.now(UTC) + timedelta(seconds=60),
            heartbeat_every_s=self.heartbeat_every_s,
            model=model or ModelSpec(name="custom"),
            weights=self.store(weights),
            weights_bytes=len(weights),
            local=local or LocalTraining(),
            seed=number,
        )

    def count(self, operation: str) -> int:
        return sum(call.operation == operation for call in self.calls)

    def body_bytes(self, operation: str) -> int:
        return sum(call.body_bytes for call in self.calls if call.operation == operation)

    def wait_for(self, condition: Callable[[], bool], within_s: float = 30.0) -> None:
        """For tests whose agent runs in another process or thread."""
        give_up_at = time.monotonic() + within_s
        while not condition():
            if time.monotonic() > give_up_at:
                raise AssertionError(f"did not happen within {within_s} s; calls: {self.calls}")
            time.sleep(0.01)

    # running

    def start(self) -> None:
        """Also after `stop`: on the same port, with the same state."""
        config = uvicorn.Config(
            self._app,
            host="127.0.0.1",
            port=self._port,
            log_level="critical",
            lifespan="off",
            loop="asyncio",
            interface="asgi3",
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.005)
        self._port = self._server.servers[0].sockets[0].getsockname()[1]

    def stop(self) -> None:
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(10)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # answering

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        operation = _operation(scope["method"], scope["path"])
        headers = {name.decode().lower(): value.decode() for name, value in scope["headers"]}
        client = headers.get("authorization", "").removeprefix("Bearer token-of-")
        call = Call(operation, client, time.monotonic(), headers)
        self.calls.append(call)
        act = self.script[operation].popleft() if self.script[operation] else None
        if client not in self.clients:
            act = Refuse("unauthenticated", 401)
        match act:
            case Refuse():
                await _problem(act)(scope, receive, send)
                return
            case Slow(seconds):
                await asyncio.sleep(seconds)
            case Cut() if operation not in ("put", "patch", "get"):
                _break(receive)
                return
        if scope["path"].startswith("/v1/blobs/"):
            digest = scope["path"].removeprefix("/v1/blobs/")
            await self._blob(operation, digest, call, act, scope, receive, send)
            return
        await self._json(scope, receive, send)

    async def _blob(
        self, operation: str, digest: str, call: Call, act: Act | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        if operation == "get":
            await self._send_blob(digest, call, act, receive, send, scope)
            return
        if operation == "head":
            await self._describe_blob(digest)(scope, receive, send)
            return
        if operation == "put":
            total = int(call.headers["content-length"])
            self.parts[digest] = bytearray()
        else:
            total = int(call.headers["upload-length"])
            if int(call.headers["upload-offset"]) != len(self.parts.get(digest, b"")):
                await _problem(Refuse("upload-offset-mismatch", 409))(scope, receive, send)
                return
        part = self.parts[digest]
        more = True
        while more:
            message = await receive()
            piece, more = message.get("body", b""), message.get("more_body", False)
            if isinstance(act, Cut) and call.body_bytes + len(piece) >= act.after_bytes:
                piece = piece[: act.after_bytes - call.body_bytes]
                call.body_bytes += len(piece)
                part += piece
                _break(receive)
                return
            call.body_bytes += len(piece)
            part += piece
        assert len(part) == total
        del self.parts[digest]
        if "sha256:" + hashlib.sha256(part).hexdigest() != digest:
            await _problem(Refuse("digest-mismatch", 422))(scope, receive, send)
            return
        self.blobs[digest] = bytes(part)
        info: dict[str, Any] = {"digest": digest, "bytes": total}
        if self.takes_results and (text := call.headers.get("lethe-result")):
            task_id = UUID(call.headers["lethe-task"])
            self.submissions.append((task_id, Submission.model_validate_json(text)))
            self.leased[call.client].pop(task_id, None)
            info["submission"] = {"status": "accepted", "update_id": str(UUID(int=7))}
        await JSONResponse(info, 201)(scope, receive, send)

    def _describe_blob(self, digest: str) -> Response:
        if digest in self.blobs:
            headers = {"Content-Length": str(len(self.blobs[digest])), "Upload-Complete": "?1"}
            return Response(status_code=200, headers=headers)
        if digest in self.parts:
            headers = {"Upload-Offset": str(len(self.parts[digest])), "Upload-Complete": "?0"}
            return Response(status_code=204, headers=headers)
        return Response(status_code=404)

    async def _send_blob(
        self, digest: str, call: Call, act: Act | None, receive: Receive, send: Send, scope: Scope
    ) -> None:
        if digest not in self.blobs:
            await _problem(Refuse("not-found", 404))(scope, receive, send)
            return
        blob = self.blobs[digest]
        if isinstance(act, Corrupt):
            blob = blob[:-1] + bytes([blob[-1] ^ 1])
        start = int(call.headers.get("range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        rest = blob[start:]
        headers = [(b"content-length", str(len(rest)).encode())]
        await send({"type": "http.response.start", "status": 206 if start else 200, "headers": headers})
        sent = rest[: act.after_bytes] if isinstance(act, Cut) else rest
        call.body_bytes = len(sent)
        await send({"type": "http.response.body", "body": sent, "more_body": len(sent) < len(rest)})
        if len(sent) < len(rest):
            await asyncio.sleep(0.05)  # let what was sent arrive before the line breaks
            _break(receive)

    def _json_app(self) -> FastAPI:
        app = FastAPI()

        def client_of(request: Request) -> str:
            return request.headers["authorization"].removeprefix("Bearer token-of-")

        @app.post("/v1/sessions")
        async def open_session(request: Request) -> Any:
            self.sessions.append(SessionRequest.model_validate_json(await request.body()))
            client = client_of(request)
            if self.leased[client]:
                self.offers[client].appendleft(list(self.leased.pop(client).values()))
            return {
                "client_id": str(UUID(int=1)),
                "client_name": client,
                "federation_id": str(UUID(int=2)),
                "heartbeat_every_s": self.heartbeat_every_s,
                "max_wait_s": self.max_wait_s,
                "max_blob_bytes": 1 << 30,
            }

        @app.post("/v1/tasks/claim")
        async def claim(request: Request) -> Any:
            client = client_of(request)
            give_up_at = time.monotonic() + float(request.headers["prefer"].removeprefix("wait="))
            while not self.offers[client]:
                if time.monotonic() >= give_up_at or await request.is_disconnected():
                    return Response(status_code=204)
                await asyncio.sleep(0.01)
            grants = self.offers[client].popleft()
            self.leased[client] |= {grant.task_id: grant for grant in grants}
            return Response(
                '{"tasks":[' + ",".join(grant.model_dump_json() for grant in grants) + "]}",
                media_type="application/json",
            )

        @app.post("/v1/tasks/{task_id}/heartbeat")
        async def heartbeat(task_id: UUID, request: Request) -> Any:
            self.heartbeats.append((task_id, Heartbeat.model_validate_json(await request.body())))
            directive = "cancel" if task_id in self.cancelled else "continue"
            return {"lease_expires_at": None, "directive": directive}

        @app.put("/v1/tasks/{task_id}/result")
        async def submit(task_id: UUID, request: Request) -> Any:
            submission = Submission.model_validate_json(await request.body())
            if submission.update is not None and submission.update not in self.blobs:
                return _problem(Refuse("blob-missing", 409))
            self.submissions.append((task_id, submission))
            self.leased[client_of(request)].pop(task_id, None)
            return {"status": "accepted"}

        @app.post("/v1/tasks/{task_id}/failure")
        async def fail(task_id: UUID, request: Request) -> Any:
            self.failures.append((task_id, Failure.model_validate_json(await request.body())))
            self.leased[client_of(request)].pop(task_id, None)
            return {"status": "will-retry"}

        return app


def _operation(method: str, path: str) -> str:
    if path.startswith("/v1/blobs/"):
        return method.lower()
    last = path.rpartition("/")[2]
    return {"sessions": "session", "result": "submit", "failure": "fail"}.get(last, last)


def _problem(refuse: Refuse) -> Response:
    headers = {"Retry-After": refuse.retry_after} if refuse.retry_after else {}
    body = {
        "type": f"/v1/problems/{refuse.code}",
        "title": refuse.code,
        "status": refuse.status,
        "detail": "as scripted",
        "code": refuse.code,
        "retryable": refuse.status >= 500 or refuse.status == 429,
    }
    return JSONResponse(body, refuse.status, headers, media_type="application/problem+json")


def _break(receive: Receive) -> None:
    """Reset the TCP connection under the request; `receive` is a method of uvicorn's request cycle."""
    receive.__self__.transport.abort()  # type: ignore[attr-defined]
