"""What the demo does, step by step: start, enrol, train, kill the coordinator, start it again, look at the result."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final
from uuid import uuid4

from rich.console import Console

from lethe import run_file
from lethe.client import Client
from lethe.commands.checkpoints import accuracy_of, lineage_in_one_line
from lethe.demo.processes import Child, Processes
from lethe.printing import cell, new_table
from lethe.watching import RoundLine, RunView, watch

NUM_CLIENTS: Final = 5
READY_WITHIN_S: Final = 60.0
KERNEL_LEASE_S: Final = "3"
"""Should the kill hit an aggregation, it is taken over after this silence; the default suits larger models."""

Event = dict[str, Any] | None


class DemoFailed(Exception):
    """The story did not end as it should."""


@dataclass(frozen=True)
class Outcome:
    url: str
    run_id: str
    checkpoints: list[dict[str, Any]]
    lineage: Mapping[str, Any]
    num_updates: Mapping[int, int]
    """By round."""
    killed_in_round: int
    kept_in: Path | None = None


def run_spec(rounds: int) -> dict[str, Any]:
    return {
        "name": "digits",
        "model": {"name": "cnn", "params": {"input_shape": [8, 8], "num_classes": 10}},
        "local": {"epochs": 1, "batch_size": 16, "learning_rate": 0.05},
        "validation": {"data": "builtin:digits"},
        "stop": {"rounds": rounds},
        "lease_s": 15.0,
    }


class Story:
    def __init__(self, directory: Path, processes: Processes, console: Console, *, rounds: int, limit_s: float) -> None:
        self._directory, self._processes, self._console = directory, processes, console
        self._rounds = rounds
        self._give_up_at = time.monotonic() + limit_s
        self._starts = 0
        self._kill_after = max(1, rounds // 2)
        self._killed_in_round: int | None = None

    def tell(self) -> Outcome:
        self._say(f"starting a coordinator (SQLite and files in {self._directory})")
        url = self._start_coordinator(port=0)
        token = (self._directory / "coordinator" / "admin.token").read_text("utf-8").strip()
        with Client(url, token) as client:
            federation = client.post("/v1/federations", {"name": "demo"})
            self._start_workers(client, federation["id"], url)
            run = self._create_run(client, federation["id"])
            view = RunView(run["name"], run["rounds_planned"])
            watch(view, self._with_a_kill(client, run["id"], view), self._console)
            if view.status != "completed":
                raise DemoFailed(f"the run {view.status}: {view.reason}")
            return self._examine(client, url, run["id"])

    def _start_coordinator(self, port: int) -> str:
        self._starts += 1
        child = self._processes.start(
            "coordinator" if self._starts == 1 else f"coordinator-{self._starts}",
            *("serve", "--home", str(self._directory / "coordinator"), "--port", str(port)),
            LETHE_KERNEL_LEASE_S=KERNEL_LEASE_S,
        )
        self._coordinator: Child = child
        return self._processes.wait_for_line(child, "ready ", within_s=READY_WITHIN_S)

    def _start_workers(self, client: Client, federation_id: str, url: str) -> None:
        self._say(f"enrolling {NUM_CLIENTS} clients and starting their workers, each with its own share of real digits")
        for number in range(NUM_CLIENTS):
            name = f"clinic-{'abcdefghij'[number]}"
            issued = client.post(f"/v1/federations/{federation_id}/clients", {"name": name})
            token_file = self._directory / f"{name}.token"
            token_file.touch(mode=0o600)
            token_file.write_text(issued["token"])
            self._processes.start(
                name,
                *("worker", "--coordinator", url, "--token-file", str(token_file)),
                *("--task", "builtin:image-classifier"),
                *("--data", f"builtin:digits#part={number}/{NUM_CLIENTS},how=dirichlet:0.5,seed=0"),
                *("--cache-dir", str(self._directory / f"{name}.cache"), "--display", "log", "--grace", "2"),
            )

    def _create_run(self, client: Client, federation_id: str) -> dict[str, Any]:
        spec = run_file.resolve(
            run_spec(self._rounds), lambda path: str(client.upload(path, federation_id=federation_id)["digest"])
        )
        body = {"federation_id": federation_id, "spec": spec}
        run: dict[str, Any] = client.post("/v1/runs", body, headers={"Idempotency-Key": str(uuid4())})
        self._say(f"run {run['name']}: {self._rounds} rounds of federated averaging, judged on 360 held-out digits")
        return run

    def _with_a_kill(self, client: Client, run_id: str, view: RunView) -> Iterator[Event]:
        """The run's events. In the middle, with a round half done, the coordinator is killed and started again."""
        for event in self._supervised(client.follow(run_id)):
            yield event
            if event is None or event["type"] != "UpdateAccepted" or self._killed_in_round is not None:
                continue
            if event["data"]["round"] > self._kill_after:
                self._kill_and_restart(event["data"]["round"], event.get("cohort_id"), view)

    def _kill_and_restart(self, round: int, cohort_id: str | None, view: RunView) -> None:
        self._killed_in_round = round
        view.rounds.setdefault((cohort_id, round), RoundLine(round)).note = "coordinator killed and restarted"
        port = self._url_port(self._coordinator)
        view.is_connected = False
        killed = self._processes.kill(self._coordinator.name)
        self._say(f"*** SIGKILL to the coordinator (process {killed.process.pid}) in the middle of round {round} ***")
        started = time.monotonic()
        self._start_coordinator(port)
        self._say(f"*** started again on the same port after {time.monotonic() - started:.1f} s; the run goes on ***")

    def _url_port(self, child: Child) -> int:
        return int(self._processes.wait_for_line(child, "ready ", within_s=1.0).rpartition(":")[2])

    def _supervised(self, events: Iterator[Event]) -> Iterator[Event]:
        """The events, read in a thread, so that a dead process or an overlong story is noticed while none come."""
        queue: SimpleQueue[Event | BaseException] = SimpleQueue()

        def read() -> None:
            try:
                for event in events:
                    queue.put(event)
            except BaseException as error:  # handed to the main thread
                queue.put(error)

        threading.Thread(target=read, daemon=True).start()
        while True:
            self._processes.check()
            if time.monotonic() > self._give_up_at:
                raise DemoFailed("the demo takes too long on this machine")
            try:
                item = queue.get(timeout=0.5)
            except Empty:
                continue
            if isinstance(item, BaseException):
                raise item
            yield item

    def _examine(self, client: Client, url: str, run_id: str) -> Outcome:
        checkpoints = sorted(client.pages(f"/v1/runs/{run_id}/checkpoints"), key=lambda found: int(found["round"]))
        rounds = [found["round"] for found in checkpoints]
        if rounds != list(range(self._rounds + 1)):
            raise DemoFailed(f"rounds are missing or doubled: {rounds}")
        if self._killed_in_round is None:
            raise DemoFailed("the coordinator was never killed")
        num_updates = {found["number"]: found["num_received"] for found in client.pages(f"/v1/runs/{run_id}/rounds")}
        lineage = client.get(f"/v1/checkpoints/{checkpoints[-1]['id']}/lineage")
        return Outcome(url, run_id, checkpoints, lineage, num_updates, self._killed_in_round)

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


def play(console: Console, *, directory: Path | None, keep: bool, rounds: int, limit_s: float) -> Outcome:
    """The whole demo; every process has ended when this returns or raises. Failure prints the ends of the logs."""
    place = directory or Path(tempfile.mkdtemp(prefix="lethe-demo-"))
    place.mkdir(parents=True, exist_ok=True)
    processes = Processes(place)
    try:
        with processes:
            outcome = Story(place, processes, console, rounds=rounds, limit_s=limit_s).tell()
        return replace(outcome, kept_in=place if directory is not None or keep else None)
    except Exception:
        print_tails(console, place)
        raise
    finally:
        if directory is None and not keep:
            shutil.rmtree(place, ignore_errors=True)


def print_tails(console: Console, directory: Path) -> None:
    for log in sorted(directory.glob("*.log")):
        console.print(f"--- the end of {log.name}", highlight=False, markup=False)
        for line in log.read_text("utf-8", errors="replace").splitlines()[-12:]:
            console.print("    " + line, highlight=False, markup=False)


def print_outcome(console: Console, outcome: Outcome) -> None:
    table = new_table("round", "accuracy", "loss", "updates", "")
    for checkpoint in outcome.checkpoints:
        accuracy = accuracy_of(checkpoint["metrics"])
        table.add_row(
            cell(checkpoint["round"]),
            cell(None if accuracy is None else f"{accuracy:.4f}"),
            cell(checkpoint["metrics"].get("validation_loss")),
            cell(outcome.num_updates.get(checkpoint["round"])),
            "<- coordinator killed and restarted here" if checkpoint["round"] == outcome.killed_in_round else "",
        )
    console.print(table)
    console.print("lineage: " + lineage_in_one_line(outcome.lineage), highlight=False, markup=False, soft_wrap=True)
