"""Agents in threads that answer tasks of a real coordinator with constant deltas: no torch, and nothing to wait for."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
from safetensors.numpy import save

from services.core import digests

MODEL = {"w": np.full(8, 64.0, np.float32)}
"""Far from all deltas: bytes that equal a superseded model are refused, whoever sends them."""


def blob(tensors: Mapping[str, Any]) -> tuple[str, bytes]:
    data = save(dict(tensors))
    return digests.of_bytes(data), data


@dataclass
class Agents:
    """`with Agents(url, tokens):` they work, through crashes of the coordinator, until the block ends."""

    url: str
    tokens: dict[str, str]
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Agents:
        self._threads = [threading.Thread(target=self._work, args=item) for item in self.tokens.items()]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _work(self, name: str, token: str) -> None:
        headers = {"Authorization": f"Bearer {token}", "Prefer": "wait=1"}
        with httpx.Client(base_url=self.url, headers=headers, timeout=10) as http:
            while not self._stop.is_set():
                try:
                    claimed = http.post("/v1/tasks/claim")
                    if claimed.status_code in (401, 403):
                        return
                    for task in claimed.json()["tasks"] if claimed.status_code == 200 else []:
                        _answer(http, name, task)
                except httpx.TransportError:
                    self._stop.wait(0.1)


def _answer(http: httpx.Client, name: str, task: dict[str, Any]) -> None:
    value = (sum(name.encode()) % 31) / 32 + 0.25 * task["round"]
    digest, data = blob({"w": np.full(8, value, np.float32)})
    if http.put(f"/v1/blobs/{digest}", content=data, headers={"Lethe-Task": task["task_id"]}).is_success:
        body = {"lease_token": task["lease_token"], "update": digest, "num_samples": 10}
        http.put(f"/v1/tasks/{task['task_id']}/result", json=body)
