"""A federation of one's own on this machine: a coordinator, its clients and one worker process that serves them all.

What it makes lies under one directory and is found again: the same clients with the same tokens, the same runs.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lethe.children import Children
from lethe.client.synchronous.accounts import EnrolledClient
from lethe.client.synchronous.client import Client
from lethe.errors import NotFound

NAME: Final = "local"
READY_WITHIN_S: Final = 120.0
DIGITS: Final = "builtin:digits#part={number}/{clients},how=dirichlet:1,seed=0"
"""Real handwritten digits, divided among the clients."""


@dataclass(frozen=True)
class LocalFederation:
    home: Path
    port: int
    num_clients: int
    task: str = "builtin:classifier"
    data: str = DIGITS
    """`{number}` is the client's, from 0, `{clients}` how many there are."""

    def start(self, children: Children, say: Callable[[str], None]) -> str:
        """Start everything and wait until every client is online. Returns the coordinator's address."""
        say(f"starting a coordinator (SQLite and files in {self.home})")
        for log in self.home.glob("*.log"):  # of an earlier time
            log.unlink()
        serving = children.start("coordinator", "serve", "--home", str(self.home), "--port", str(self.port))
        url = children.wait_for_line(serving, "ready ", within_s=READY_WITHIN_S)
        with Client(url, token_file=self.home / "admin.token") as client:
            fleet = self._write_fleet(client, url)
            places = ("--cache-dir", str(self.home / "worker-cache"), "--ledger-dir", str(self.home / "worker-ledgers"))
            children.start("worker", "worker", "--fleet", str(fleet), *places, "--display", "log", "--grace", "2")
            say(f"starting a worker for {self.num_clients} clients")
            self._await_workers(client, children)
        return url

    def _write_fleet(self, client: Client, url: str) -> Path:
        """A fleet file for the clients, who are enrolled where they are not yet."""
        try:
            client.federations.get(NAME)
        except NotFound:
            client.federations.create(NAME)
        known = {one.name: one for one in client.clients.list(federation=NAME)}
        members = [
            {
                "token_file": str(self._token_file(client, name, known.get(name))),
                "task": self.task,
                "data": self.data.replace("{number}", str(number)).replace("{clients}", str(self.num_clients)),
            }
            for number, name in enumerate(self.names)
            if name not in known or known[name].status == "active"
        ]
        fleet = self.home / "worker.yaml"  # JSON is YAML
        fleet.write_text(json.dumps({"coordinator": url, "clients": members}, indent=2), "utf-8")
        return fleet

    def _token_file(self, client: Client, name: str, known: EnrolledClient | None) -> Path:
        file = self.home / "clients" / f"{name}.token"
        if known is not None and file.is_file():
            return file
        issued = client.clients.enrol(name, federation=NAME) if known is None else known.rotate()
        file.parent.mkdir(mode=0o700, exist_ok=True)
        file.unlink(missing_ok=True)
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as out:
            out.write(issued.token + "\n")
        return file

    @property
    def names(self) -> list[str]:
        return [f"client-{number}" for number in range(self.num_clients)]

    def _await_workers(self, client: Client, children: Children) -> None:
        give_up_at = time.monotonic() + READY_WITHIN_S
        while time.monotonic() < give_up_at:
            children.check()
            ours = [one for one in client.clients.list(federation=NAME) if one.name in self.names]
            if all(one.online for one in ours if one.status == "active"):
                return
            time.sleep(0.2)
        raise TimeoutError(f"not every client came online within {READY_WITHIN_S:.0f} s")
