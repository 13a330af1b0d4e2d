"""The people of a storm: honest clients that note how long each request took, and hostile ones that try to stop them.

All are threads of one process that speak HTTP to a coordinator on the loopback until the storm is over.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import numpy as np
from safetensors.numpy import save

from services.core import digests

SIZE: Final = 4096
LEAVE: Final = (401, 403)
PATIENCE_S: Final = 1.0
MANY: Final = 32
"""Connections that one slow or endless sender holds open."""


@dataclass
class Record:
    """What was answered: statuses by kind of sender, and the honest ones' seconds by kind of request."""

    statuses: dict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    latencies_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    servers_faults: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, sender: str, request: str, response: httpx.Response, seconds: float | None = None) -> None:
        with self._lock:
            self.statuses[sender][response.status_code] += 1
            if seconds is not None:
                self.latencies_s[request].append(seconds)
            if response.status_code >= 500 and response.status_code != 503:
                self.servers_faults.append(f"{sender} {request} {response.status_code} {response.text[:200]}")


@dataclass
class Crowd:
    """`with Crowd(url, record) as crowd:` everybody added works until the block ends."""

    url: str
    record: Record
    over: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        for thread in self._threads:
            thread.join()

    def add(self, work: Callable[[Crowd, str], None], token: str) -> None:
        self._threads.append(threading.Thread(target=work, args=(self, token), daemon=True))
        self._threads[-1].start()

    def http(self, token: str) -> httpx.Client:
        headers = {"Authorization": f"Bearer {token}", "Prefer": "wait=1"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=30)

    def connect(self) -> socket.socket:
        place = urlsplit(self.url)
        return socket.create_connection((place.hostname or "", place.port or 0), timeout=5)


def update(value: float, size: int = SIZE) -> tuple[str, bytes]:
    data = save({"w": np.full(size, value, np.float32)})
    return digests.of_bytes(data), data


# --- honest -----------------------------------------------------------------------------------------------------------


def honest(crowd: Crowd, token: str) -> None:
    """Claims, fetches, trains (a constant), uploads, submits; tries again what is put off."""
    with crowd.http(token) as http:
        while not crowd.over.is_set():
            try:
                claimed = http.post("/v1/tasks/claim")
                crowd.record.note("honest", "claim", claimed)
                if claimed.status_code in LEAVE:
                    return
                if claimed.status_code != 200:
                    crowd.over.wait(_pause(claimed))
                    continue
                for task in claimed.json()["tasks"]:
                    _serve(crowd, http, task)
            except httpx.TransportError:
                crowd.over.wait(0.2)


def _serve(crowd: Crowd, http: httpx.Client, task: dict[str, Any]) -> None:
    _timed(crowd, http, "fetch", "GET", f"/v1/blobs/{task['weights']}")
    body: dict[str, Any] = {"lease_token": task["lease_token"], "num_samples": 10}
    if task["kind"] == "evaluate":
        body["metrics"] = {"loss": 0.5, "accuracy": 0.5}
    else:
        digest, data = update((task["round"] % 7) / 8)
        headers = {"Lethe-Task": task["task_id"]}
        if not _timed(crowd, http, "upload", "PUT", f"/v1/blobs/{digest}", content=data, headers=headers).is_success:
            return
        body["update"] = digest
    _timed(crowd, http, "submit", "PUT", f"/v1/tasks/{task['task_id']}/result", json=body)


def _timed(crowd: Crowd, http: httpx.Client, request: str, method: str, path: str, **body: Any) -> httpx.Response:
    """The answer, asked for again while the coordinator puts it off; the time is of the last try."""
    while True:
        begun = time.perf_counter()
        response = http.request(method, path, **body)
        crowd.record.note("honest", request, response, time.perf_counter() - begun)
        if response.status_code not in (408, 429, 503) or crowd.over.is_set():
            return response
        crowd.over.wait(_pause(response))


def _pause(response: httpx.Response) -> float:
    return min(float(response.headers.get("Retry-After", 0.2)), PATIENCE_S)


# --- hostile ----------------------------------------------------------------------------------------------------------


def slow_bodies(crowd: Crowd, token: str) -> None:
    """Many uploads at a time, a byte each now and then."""
    digest, data = update(0.123)
    head = f"PUT /v1/blobs/{digest} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Length: {len(data)}"
    _drip(crowd, f"{head}\r\n\r\n".encode(), data)


def endless_headers(crowd: Crowd, token: str) -> None:
    """Headers that never end, some in a hurry and some a byte at a time, and requests that are only begun."""
    _drip(crowd, b"GET /v1/runs HTTP/1.1\r\nHost: x\r\nX-Endless: ", b"x" * 65536, hurry=True)


def _drip(crowd: Crowd, head: bytes, rest: bytes, *, hurry: bool = False) -> None:
    held: list[socket.socket | None] = [None] * MANY
    while not crowd.over.is_set():
        for place, connection in enumerate(held):
            try:
                if connection is None:
                    connection = held[place] = crowd.connect()
                    connection.settimeout(0.2)
                    connection.sendall(head)
                connection.sendall(rest if hurry and place % 2 else rest[:1])
            except OSError:
                if connection is not None:
                    connection.close()
                held[place] = None
        crowd.over.wait(0.1)
    for connection in held:
        if connection is not None:
            connection.close()


def absurd_figures(crowd: Crowd, token: str) -> None:
    """Answers every task with figures as large as the wire lets through, and larger."""
    with crowd.http(token) as http:
        while not crowd.over.is_set():
            with contextlib.suppress(httpx.TransportError, ValueError, KeyError):
                for task in _claimed(crowd, http, "absurd figures"):
                    digest, data = update(0.5)
                    http.put(f"/v1/blobs/{digest}", content=data)
                    for loss, num_samples in ((1e308, 10**9), (-1e308, 10**9), (1e30, 10**9), (1e6, 10**6)):
                        body = {
                            "lease_token": task["lease_token"],
                            "num_samples": num_samples,
                            "metrics": {"loss": loss, "accuracy": 1.0, "seconds": loss},
                            **({} if task["kind"] == "evaluate" else {"update": digest}),
                        }
                        answer = http.put(f"/v1/tasks/{task['task_id']}/result", json=body)
                        crowd.record.note("absurd figures", "submit", answer)


def huge_updates(crowd: Crowd, token: str) -> None:
    """The largest finite numbers, a file of many empty tensors, and bytes that are never used."""
    empty = save({f"t{number}": np.zeros(0, np.float32) for number in range(20_000)})
    with crowd.http(token) as http:
        while not crowd.over.is_set():
            with contextlib.suppress(httpx.TransportError, ValueError, KeyError):
                for task in _claimed(crowd, http, "huge updates"):
                    digest, data = update(3.4e38)
                    http.put(f"/v1/blobs/{digest}", content=data)
                    body = {"lease_token": task["lease_token"], "num_samples": 10**9, "update": digest}
                    answer = http.put(f"/v1/tasks/{task['task_id']}/result", json=body)
                    crowd.record.note("huge updates", "submit", answer)
                noise = save({"w": np.frombuffer(os.urandom(4 << 20), np.uint8)})
                for data in (empty, noise):
                    answer = http.put(f"/v1/blobs/{digests.of_bytes(data)}", content=data)
                    crowd.record.note("huge updates", "upload", answer)


def floods(crowd: Crowd, token: str) -> None:
    """Requests as fast as they go: claims that do not wait, forged tokens, ids of nobody, bodies that are no JSON."""
    nobody = "01890a5d-ac96-774b-bcce-b302099a8057"
    calls: list[tuple[str, str, dict[str, Any]]] = [
        ("POST", "/v1/tasks/claim", {"headers": {"Prefer": "wait=0"}}),
        ("GET", "/v1/runs", {"headers": {"Authorization": "Bearer forged"}}),
        ("PUT", f"/v1/tasks/{nobody}/result", {"json": {"lease_token": "x", "num_samples": 1}}),
        ("POST", "/v1/erasure-requests", {"content": b'{"a":' * 2000, "headers": {"Content-Type": "application/json"}}),
    ]

    def one_of_four(number: int) -> None:
        with crowd.http(token) as http:
            while not crowd.over.is_set():
                with contextlib.suppress(httpx.TransportError):
                    method, path, body = calls[number]
                    crowd.record.note("floods", path, http.request(method, path, **body))

    threads = [threading.Thread(target=one_of_four, args=(number,), daemon=True) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _claimed(crowd: Crowd, http: httpx.Client, sender: str) -> list[dict[str, Any]]:
    answer = http.post("/v1/tasks/claim")
    crowd.record.note(sender, "claim", answer)
    if answer.status_code != 200:
        crowd.over.wait(_pause(answer))
        return []
    tasks: list[dict[str, Any]] = answer.json()["tasks"]
    return tasks


HOSTILE: Final = (slow_bodies, endless_headers, absurd_figures, huge_updates, floods)
