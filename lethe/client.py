"""The operator's HTTP client: small and synchronous. Answers are plain JSON values, so that a newer coordinator may add
fields; problem+json answers and connection failures become `CommandFailed`."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urljoin, urlsplit
from uuid import UUID

import httpx

from lethe.failures import REFUSED, UNUSABLE, CommandFailed

Record = dict[str, Any]
PIECE_BYTES: Final = 1 << 20
LOOPBACK: Final = {"127.0.0.1", "localhost", "::1"}
SILENCE_S: Final = 60.0
"""An event stream that says nothing for so long, not even a keep-alive, is opened anew."""

OVER: Final = {"completed", "denied", "cancelled", "failed"}
"""States of an erasure request that it does not leave."""

NEXT_STEPS: Final[Mapping[str, str]] = {
    "unauthenticated": "give a token before the command's name: lethe --token-file FILE …, or LETHE_TOKEN",
    "forbidden": "ask for a credential with a higher role: lethe credentials create --role operator",
    "not-found": "list what there is: lethe federations list, lethe runs list",
    "name-taken": "choose another name, or list what there is",
    "idempotency-key-reused": "leave out --idempotency-key, or send the same file again",
    "precondition-failed": "look at it again and repeat the command",
    "certificate-not-ready": "follow the request until it is completed: lethe erase watch ID",
    "superseded": "use the cohort's head: lethe checkpoints list RUN",
}


class ProblemAnswered(CommandFailed):
    """The coordinator refused: its problem details. `type` is an address on the coordinator at `url`."""

    def __init__(self, url: str, status: int, problem: Mapping[str, Any]) -> None:
        self.status = status
        self.code = str(problem.get("code", "unknown"))
        lines = [f"{problem.get('title') or 'refused'} ({self.code}, HTTP {status})"]
        faults = [
            f"{'.'.join(map(str, fault.get('loc', ())))}: {fault.get('msg')}" for fault in problem.get("errors") or []
        ]
        lines += [f"       {text}" for text in faults or [str(problem.get("detail") or "")] if text]
        next_step = NEXT_STEPS.get(self.code)
        if next_step is None and problem.get("retryable"):
            next_step = "try again in a moment"
        if next_step is None and problem.get("type"):
            next_step = f"read {urljoin(url, problem['type'])}"
        super().__init__("\n".join(lines), next_step=next_step, exit_code=REFUSED)


class CoordinatorUnreachable(CommandFailed):
    def __init__(self, url: str, error: Exception) -> None:
        super().__init__(
            f"no coordinator answers at {url} ({error or type(error).__name__})",
            next_step="start one with `lethe serve`, or name another: lethe --url URL … (or LETHE_URL)",
        )


class Client:
    def __init__(self, url: str, token: str | None) -> None:
        self.url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            # Proxies and their certificates come from the environment, but never stand before this very machine.
            is_here = is_this_machine(self.url)
            self._http = httpx.Client(base_url=self.url, headers=headers, timeout=30.0, trust_env=not is_here)
        except (httpx.InvalidURL, ValueError) as error:
            raise CommandFailed(f"{url} is no address: {error}", next_step=f"write it like {EXAMPLE_URL}") from error
        except OSError as error:
            raise CommandFailed(
                f"certificate authorities cannot be read: {error}",
                next_step="correct or unset SSL_CERT_FILE and SSL_CERT_DIR",
                exit_code=UNUSABLE,
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def await_start(self) -> None:
        """Wait until the coordinator answers anything at all; then its token is written."""
        with self._translated():
            self._http.get("/healthz")

    def get(self, path: str, **params: Any) -> Any:
        return self._json("GET", path, params={k: v for k, v in params.items() if v is not None})

    def post(self, path: str, body: Any = None, *, headers: Mapping[str, str] | None = None) -> Any:
        return self._json("POST", path, json=body, headers=headers)

    def delete(self, path: str) -> None:
        self._json("DELETE", path)

    def pages(self, path: str, **params: Any) -> Iterator[Record]:
        """Every item of a list, page after page."""
        cursor: str | None = None
        while True:
            page = self.get(path, cursor=cursor, **params)
            yield from page["items"]
            cursor = page.get("next_cursor")
            if cursor is None:
                return

    # names and ids

    def federation(self, name_or_id: str | None) -> Record:
        """The federation of that name or id; without one, the only federation there is."""
        if name_or_id is not None and is_id(name_or_id):
            return dict(self.get(f"/v1/federations/{name_or_id}"))
        federations = list(self.pages("/v1/federations"))
        if name_or_id is None and len(federations) == 1:
            return federations[0]
        if name_or_id is None:
            fault = "there are several federations" if federations else "there is no federation yet"
            step = "say which: --federation NAME" if federations else "make one: lethe federations create NAME"
            raise CommandFailed(f"{fault}{_named(federations)}", next_step=step)
        return _only("federation", name_or_id, federations)

    def run(self, name_or_id: str) -> Record:
        """The run of that id, or the only one of that name in all federations."""
        if is_id(name_or_id):
            return dict(self.get(f"/v1/runs/{name_or_id}"))
        runs = sorted(self.pages("/v1/runs"), key=lambda run: str(run["created_at"]), reverse=True)
        return _only("run", name_or_id, runs)

    def checkpoint_id(self, id_or_run: str) -> str:
        """An id as it is; for the name of a run, the newest of the models that it serves."""
        if is_id(id_or_run):
            return id_or_run
        run = self.run(id_or_run)
        heads = [found for found in self.pages(f"/v1/runs/{run['id']}/checkpoints") if found["is_head"]]
        if not heads:
            raise CommandFailed(f"run {run['name']} serves no model yet", next_step=f"lethe runs watch {run['name']}")
        return str(max(heads, key=lambda found: str(found["created_at"]))["id"])

    def erasure_id(self, id_or_client: str) -> str:
        """For the name of a client the one open request about it, else the newest. Anything else is taken for an id,
        and the coordinator says whether it is one."""
        if is_id(id_or_client):
            return id_or_client
        try:
            found = [one for one in self.pages("/v1/erasure-requests") if id_or_client in one["subjects"]]
        except ProblemAnswered:
            return id_or_client
        wanted = [one for one in found if one["status"] not in OVER]
        if len(wanted) > 1 or (not wanted and len({one["federation_id"] for one in found}) > 1):
            ids = ", ".join(f"{one['id']} ({one['status']})" for one in (wanted or found)[:5])
            raise CommandFailed(f"several requests are about {id_or_client}: {ids}", next_step="name one by its id")
        newest = max(wanted or found, key=lambda one: str(one["created_at"]), default=None)
        return id_or_client if newest is None else str(newest["id"])

    def client(self, name_or_id: str, federation: str | None) -> Record:
        if is_id(name_or_id):
            return dict(self.get(f"/v1/clients/{name_or_id}"))
        federation_id = self.federation(federation)["id"]
        return _only("client", name_or_id, list(self.pages(f"/v1/federations/{federation_id}/clients")))

    # bytes

    def upload(self, path: Path, *, federation_id: str | None = None) -> Record:
        """Store a safetensors file under the digest of its bytes; cheap when it is there already."""
        hasher = hashlib.sha256()
        for piece in _pieces(path):
            hasher.update(piece)
        address = f"/v1/blobs/sha256:{hasher.hexdigest()}"
        headers = {"Content-Length": str(path.stat().st_size), "Content-Type": "application/octet-stream"}
        params = {"federation_id": federation_id} if federation_id is not None else None
        return dict(self._json("PUT", address, content=_pieces(path), headers=headers, params=params, timeout=None))

    def download(self, path: str, out: Path) -> int:
        """Into a file that appears only when complete."""
        partial = out.with_name(out.name + ".part")
        with self._translated(), self._http.stream("GET", path) as response:
            if response.status_code != 200:
                response.read()
                raise self._problem(response)
            with partial.open("wb") as file:
                for piece in response.iter_bytes(PIECE_BYTES):
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
        partial.replace(out)
        return out.stat().st_size

    # events

    def events(self, run_id: str, *, after: int = 0) -> Iterator[Record]:
        """One page after another of a run's journal, up to now."""
        while True:
            page = self._json(
                "GET",
                f"/v1/runs/{run_id}/events",
                params={"after": after, "limit": 200},
                headers={"Accept": "application/json"},
            )
            yield from page["items"]
            if not page["items"] or page.get("next_cursor") is None:
                return
            after = page["items"][-1]["seq"]

    def follow(self, id: str, *, after: int = 0, of: str = "runs") -> Iterator[Record | None]:
        """Events of a run (or of another resource) as they happen, to its end. None: the connection was lost and is
        being made again."""
        pause_s = 0.1
        while True:
            try:
                for event in self._stream(f"/v1/{of}/{id}/events", after):
                    after, pause_s = event["seq"], 0.1
                    yield event
            except httpx.TransportError:
                pass
            except ProblemAnswered as problem:
                if problem.status not in (429, 502, 503, 504):
                    raise
            except _NothingMore:
                return
            yield None
            time.sleep(pause_s)
            pause_s = min(2.0, pause_s * 2)

    def _stream(self, path: str, after: int) -> Iterator[Record]:
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
        timeout = httpx.Timeout(30.0, read=SILENCE_S)
        with self._http.stream("GET", path, headers=headers, timeout=timeout) as response:
            if response.status_code == 204:
                raise _NothingMore
            if response.status_code != 200:
                response.read()
                raise self._problem(response)
            for line in response.iter_lines():
                if line.startswith("data:"):
                    yield json.loads(line.removeprefix("data:"))

    # plumbing

    def _json(self, method: str, path: str, **request: Any) -> Any:
        with self._translated():
            response = self._http.request(method, path, **request)
        if response.is_error:
            raise self._problem(response)
        if response.status_code == 204 or not response.content:
            return None
        try:
            return response.json()
        except ValueError as error:
            raise CommandFailed(
                f"{self.url} answered {response.status_code} but not JSON: is it a coordinator?"
            ) from error

    def _problem(self, response: httpx.Response) -> ProblemAnswered:
        try:
            problem = response.json()
        except ValueError:
            problem = {"title": response.reason_phrase, "detail": response.text[:300]}
        document = problem if isinstance(problem, dict) else {"detail": str(problem)}
        return ProblemAnswered(self.url, response.status_code, document)

    def _translated(self) -> _Translated:
        return _Translated(self.url)


EXAMPLE_URL: Final = "https://lethe.example.org"


class _NothingMore(Exception):
    """It has ended, and every event of it was seen."""


class _Translated:
    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, httpx.UnsupportedProtocol | httpx.InvalidURL):
            raise CommandFailed(
                f"{self._url} is no address: {error}", next_step=f"write it like {EXAMPLE_URL}"
            ) from error
        if isinstance(error, httpx.TransportError):
            raise CoordinatorUnreachable(self._url, error) from error


def is_this_machine(url: str) -> bool:
    return urlsplit(url).hostname in LOOPBACK


def await_listener(url: str, patience_s: float) -> None:
    """Until something listens there, or patience is over: `lethe serve &` takes seconds to begin. From then on requests
    wait by themselves. Only this machine is waited for."""
    try:
        parts = urlsplit(url)
        address = (parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))
    except ValueError:  # no address: the client says so
        return
    if not is_this_machine(url):
        return
    until, has_said = time.monotonic() + patience_s, False
    while True:
        try:
            socket.create_connection(address, timeout=5.0).close()
            return
        except OSError:
            if time.monotonic() >= until:
                return
        if not has_said:
            print(f"waiting up to {patience_s:g} s for the coordinator at {url}", file=sys.stderr, flush=True)
            has_said = True
        time.sleep(0.1)


def is_id(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            yield piece


def _only(kind: str, name: str, found: list[Record]) -> Record:
    """The one of that name. Several: the command might hit the wrong one, so that somebody must choose."""
    matches = [record for record in found if record["name"] == name]
    if not matches:
        raise CommandFailed(f"there is no {kind} called {name}{_named(found)}")
    if len(matches) > 1:
        lines = [f"       {_candidate(record)}" for record in matches[:10]]
        more = [f"       and {len(matches) - 10} more"] if len(matches) > 10 else []
        raise CommandFailed(
            "\n".join([f"{len(matches)} {kind}s are called {name}:", *lines, *more]),
            next_step=f"say which by its id, instead of {name}",
            exit_code=UNUSABLE,
        )
    return matches[0]


def _candidate(record: Record) -> str:
    federation = record.get("federation_id")
    described = (
        record.get("status"),
        f"created {str(record.get('created_at'))[:19]}",
        federation and f"of federation {federation}",
    )
    return "  ".join(str(part) for part in (record["id"], *described) if part)


def _named(found: list[Record]) -> str:
    names = [str(record["name"]) for record in found[:10]]
    return f"; there is {', '.join(names)}{', …' if len(found) > 10 else ''}" if names else ""
