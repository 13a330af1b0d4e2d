"""What the demo does, step by step: start, train two runs, kill the coordinator on the way, forget a client, verify."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final
from uuid import uuid4

from rich.console import Console

from lethe import run_file
from lethe.client import Client, Record
from lethe.demo.processes import Child, Processes
from lethe.erasure_effects import ErasureEffect, erasure_effects, figures_now
from lethe.replaying import ReplayOutcome, replay_served
from lethe.watching import RoundLine, RunView, watch
from services.audit.artefact_list import path_beside
from services.audit.verification import Beside, Verdict, check

CLINICS: Final = tuple(f"clinic-{letter}" for letter in "abcdef")
NUM_PROCESSES: Final = 3
LEAVER: Final = "clinic-b"
RECOVERY_ROUNDS: Final = 2
READY_WITHIN_S: Final = 60.0
KERNEL_LEASE_S: Final = "3"
"""Should the kill hit an aggregation, it is taken over after this silence; the default suits larger models."""
CLUSTERS: Final = "clusters"
TREE: Final = "tree"
TOPOLOGIES: Final[dict[str, dict[str, Any]]] = {
    CLUSTERS: {"kind": "clusters", "num_clusters": 2, "assignment": "knot", "min_size": 2},
    TREE: {"kind": "tree", "shape": "huffman"},
}

Event = dict[str, Any] | None


class DemoFailed(Exception):
    """The story did not end as it should."""


@dataclass(frozen=True)
class Outcome:
    url: str
    killed_in_round: int
    request: Record
    effects: dict[str, list[ErasureEffect]]
    """The effects on cohorts, by run."""
    verdict: Verdict
    replay: ReplayOutcome
    kept_in: Path | None = None


def run_spec(topology: str, rounds: int) -> dict[str, Any]:
    return {
        "name": topology,
        "model": {"name": "cnn", "params": {"input_shape": [8, 8], "num_classes": 10}},
        "topology": TOPOLOGIES[topology],
        "local": {"epochs": 2, "batch_size": 16, "learning_rate": 0.1},
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
            federation_id = client.post("/v1/federations", {"name": "demo"})["id"]
            self._start_workers(client, federation_id, url)
            self._say(f"\n1. KNOT clusters: {self._rounds} rounds in two clusters that know nothing of each other")
            runs = {CLUSTERS: self._train(client, federation_id, CLUSTERS, shown=("cluster-", "merged"))}
            if self._killed_in_round is None:
                raise DemoFailed("the coordinator was never killed")
            self._say(f"\n2. an influence tree: {self._rounds} rounds; only the whole federation's model is shown")
            runs[TREE] = self._train(client, federation_id, TREE, shown=("root",))
            noted = {name: figures_now(client, run["id"]) for name, run in runs.items()}
            request = self._forget(client, federation_id)
            effects = {name: erasure_effects(client, run["id"], request, noted[name]) for name, run in runs.items()}
            _check_untouched(effects)
            verdict, replay = self._verify(client, request)
            return Outcome(url, self._killed_in_round, request, effects, verdict, replay)

    # --- processes ----------------------------------------------------------------------------------------------------

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
        self._say(
            f"enrolling {len(CLINICS)} clinics, each with its own share of real digits, on {NUM_PROCESSES} workers"
        )
        path = f"/v1/federations/{federation_id}/clients"
        tokens = [client.post(path, {"name": name})["token"] for name in CLINICS]
        for number in range(NUM_PROCESSES):
            members = [
                {"token": tokens[i], "data": f"builtin:digits#part={i}/{len(CLINICS)},how=dirichlet:1,seed=0"}
                for i in range(number, len(CLINICS), NUM_PROCESSES)
            ]
            fleet = self._directory / f"worker-{number}.yaml"  # JSON is YAML
            fleet.touch(mode=0o600)
            fleet.write_text(json.dumps({"coordinator": url, "clients": members}))
            cache = str(self._directory / f"worker-{number}.cache")
            options = ("--cache-dir", cache, "--display", "log", "--grace", "2")
            self._processes.start(f"worker-{number}", "worker", "--fleet", str(fleet), *options)

    def _kill_and_restart(self, round: int, line: RoundLine, view: RunView) -> None:
        self._killed_in_round = round
        line.note = "coordinator killed and restarted"
        port = int(self._processes.wait_for_line(self._coordinator, "ready ", within_s=1.0).rpartition(":")[2])
        view.is_connected = False
        killed = self._processes.kill(self._coordinator.name)
        self._say(f"*** SIGKILL to the coordinator (process {killed.process.pid}) in the middle of round {round} ***")
        started = time.monotonic()
        self._start_coordinator(port)
        self._say(f"*** started again on the same port after {time.monotonic() - started:.1f} s; the run goes on ***")

    # --- training -----------------------------------------------------------------------------------------------------

    def _train(self, client: Client, federation_id: str, topology: str, shown: tuple[str, ...]) -> Record:
        spec = run_file.resolve(
            run_spec(topology, self._rounds),
            lambda path: str(client.upload(path, federation_id=federation_id)["digest"]),
        )
        body = {"federation_id": federation_id, "spec": spec}
        run: Record = client.post("/v1/runs", body, headers={"Idempotency-Key": str(uuid4())})
        view = RunView(run["name"], run["rounds_planned"])
        watch(view, self._shown(client, run["id"], view, shown), self._console)
        if view.status != "completed":
            raise DemoFailed(f"the run {view.status}: {view.reason}")
        return run

    def _shown(self, client: Client, run_id: str, view: RunView, shown: tuple[str, ...]) -> Iterator[Event]:
        """The events of the run and of cohorts whose names begin so. In the middle of the first run, with a round half
        done, the coordinator is killed and started again."""
        names: dict[str | None, str] = {None: shown[0]}
        for event in self._supervised(client.follow(run_id)):
            if event is not None and event["type"] == "CohortFormed":
                names[event["cohort_id"]] = event["data"]["cohort"]
            if event is not None and not names[event["cohort_id"]].startswith(shown):
                continue
            yield event
            if event is None or event["type"] != "UpdateAccepted" or self._killed_in_round is not None:
                continue
            if (round := event["data"]["round"]) > self._kill_after:
                self._kill_and_restart(round, view.rounds[event["cohort_id"], round], view)

    # --- forgetting ---------------------------------------------------------------------------------------------------

    def _forget(self, client: Client, federation_id: str) -> Record:
        body = {"federation_id": federation_id, "subjects": [LEAVER], "recovery_rounds": RECOVERY_ROUNDS}
        self._say(f"\n3. POST /v1/erasure-requests {json.dumps(body)}")
        preview = client.post("/v1/erasure-requests:preview", body)
        for option in preview["options"]:
            if not option["applies"]:
                self._say(f"   {option['method']:<8} not applicable: {option['why_not']}")
                continue
            cost = f"{option['client_updates_to_redo']} client updates to redo in {len(option['cohorts'])} cohorts"
            chosen = "  <- auto" if option["method"] == preview["chosen"] else ""
            self._say(f"   {option['method']:<8} {cost}, {option['num_cohorts_untouched']} untouched{chosen}")
        request = client.post("/v1/erasure-requests", body, headers={"Idempotency-Key": str(uuid4())})
        path = f"/v1/erasure-requests/{request['id']}"
        started, said = time.monotonic(), ""
        for event in self._supervised(client.follow(request["id"], of="erasure-requests")):
            if event is not None and event["type"] == "ErasureMoved" and event["data"]["status"] != said:
                said = event["data"]["status"]
                self._say(f"   {time.monotonic() - started:5.1f} s  {said}")
        request = client.get(path)
        if request["status"] != "completed":
            raise DemoFailed(f"the request is {request['status']}: {request['reason']}")
        return dict(request)

    def _verify(self, client: Client, request: Record) -> tuple[Verdict, ReplayOutcome]:
        certificate, key = self._directory / "certificate.json", self._directory / "lethe.pub.pem"
        artefacts, opening = path_beside(certificate), self._directory / "opening.json"
        path = f"/v1/erasure-requests/{request['id']}"
        client.download(f"{path}/certificate", certificate)
        client.download(f"{path}/certificate/artefacts", artefacts)
        client.download(f"{path}/opening", opening)
        key.write_text(client.get("/v1/erasure/discovery")["public_key"], "utf-8")
        with artefacts.open("rb") as file:
            beside = Beside(list=file, client=LEAVER, opening=opening.read_bytes())
            verdict = check(certificate.read_bytes(), key.read_bytes(), beside=beside)
        if not (verdict.valid and verdict.complete) or verdict.statement is None:
            raise DemoFailed(f"the certificate is not valid: {verdict.checks}")
        outcome = replay_served(client, verdict.statement, lambda text: None)
        if not outcome.passed:
            raise DemoFailed(f"the replay fails: {outcome.why_not}")
        return verdict, outcome

    # --- plumbing -----------------------------------------------------------------------------------------------------

    def _supervised(self, events: Iterator[Event]) -> Iterator[Event]:
        """The events, read in a thread, so that a dead process or an overlong story is noticed while none come."""
        queue: SimpleQueue[Event | BaseException] = SimpleQueue()

        def read() -> None:
            try:
                for event in events:
                    queue.put(event)
                queue.put(StopIteration())
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
            if isinstance(item, StopIteration):
                return
            if isinstance(item, BaseException):
                raise item
            yield item

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


def _check_untouched(effects: dict[str, list[ErasureEffect]]) -> None:
    """What does not contain the client keeps its bytes."""
    for run, cohorts in effects.items():
        for one in cohorts:
            if one.action == "untouched" and one.before != one.now:
                raise DemoFailed(f"{one.cohort} of {run} was to keep its model")
