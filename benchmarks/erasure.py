"""How long an erasure takes and what it costs, by topology: `lethe bench erasure [--json] [--clients 10,100]`.

Each cell has a coordinator and a worker process (`lethe worker --fleet`) of its own and trains a small network on the
digits that come with the project. When the run is done, one client is erased over HTTP. Time is counted from before the
POST to the instant that the request records as its first clean model: `seconds_to_fence`, then `merge_seconds` until
the run's own model is published again, then the rest until every touched cohort was seen to serve a clean one.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final
from uuid import uuid4

from benchmarks.figures import Printer
from benchmarks.processes import ProcessDied, tidy_when_terminated
from benchmarks.served import Served, serving
from lethe import run_file
from lethe.client import Record
from lethe.erasure_effects import ErasureEffect, accuracy, erasure_effects, figures_now

ROUNDS: Final = 5
RECOVERY_ROUNDS: Final = 1
CLIENTS_PER_ROUND: Final = 10
"""Of 100 clients as of 10: what grows is the number of cohorts, not the training."""
TOPOLOGIES: Final[dict[str, dict[str, Any]]] = {
    "flat": {"kind": "flat"},
    "clusters": {"kind": "clusters", "num_clusters": 5, "assignment": "random"},
    "bmt": {"kind": "bi_model"},
    "mmt": {"kind": "tree", "shape": "huffman"},
}
SERVED_BY: Final = {"flat": "all", "clusters": "merged", "bmt": "root", "mmt": "root"}
"""The cohort whose model stands for the run."""


def measure(topology: str, num_clients: int, max_seconds: float) -> dict[str, Any]:
    with serving() as served:
        data = [f"builtin:digits#part={number}/{num_clients},seed=0" for number in range(num_clients)]
        with served.fleet("fleet", served.enrol(num_clients), data):
            run_id = served.start_run(_spec(served, topology, num_clients))
            started = time.monotonic()
            served.wait_for_end(run_id, max_seconds, every_s=0.1)
            training_s = time.monotonic() - started
            noted, posted = figures_now(served.operator, run_id), time.time()
            request = _erase(served, _leaver(served, run_id), max_seconds)
            served.wait_for_end(run_id, max_seconds, every_s=0.05)
            return {
                "topology": topology,
                "clients": num_clients,
                **_figures(served, run_id, topology, request, posted, noted),
                "training_s": round(training_s, 2),
            }


def _figures(
    served: Served, run_id: str, topology: str, request: Record, posted: float, noted: dict[str, Record]
) -> dict[str, Any]:
    cohorts = {one.cohort: one for one in erasure_effects(served.operator, run_id, request, noted)}
    model = cohorts[SERVED_BY[topology]]
    fenced, first_clean = _instant(request["fenced_at"]), _instant(request["first_clean_at"])
    return {
        "seconds_to_first_clean": round(first_clean - posted, 3),
        "client_updates_redone": _updates_since(served, run_id, request),
        "accuracy_before": _rounded(accuracy(model.before)),
        "accuracy_first_clean": _rounded(accuracy(model.first_clean)),
        "accuracy_completed": _rounded(accuracy(model.now)),
        "seconds_to_fence": round(fenced - posted, 3),
        "merge_seconds": _merge_seconds(model, fenced),
        "seconds_to_completed": round(_instant(request["completed_at"]) - posted, 3),
        "method": request["chosen"],
        "cohorts_touched": len(request["lines"]),
        "cohorts_untouched": sum(one.action == "untouched" for one in cohorts.values()),
    }


def _merge_seconds(model: ErasureEffect, fenced: float) -> float | None:
    """From the fence to the first clean model, made of other models; None where there is nothing to merge."""
    if model.first_clean is None or model.first_clean["kind"] not in ("merge", "reinit"):
        return None
    return round(_instant(model.first_clean["created_at"]) - fenced, 3)


def _updates_since(served: Served, run_id: str, request: Record) -> int:
    """Clients' updates in rounds that were opened after the fence: the run had ended before."""
    rounds = served.list(f"/v1/runs/{run_id}/rounds")
    return sum(one["num_received"] for one in rounds if one["opened_at"] >= request["fenced_at"])


def _erase(served: Served, name: str, max_seconds: float) -> Record:
    body = {"federation_id": served.federation_id, "subjects": [name], "recovery_rounds": RECOVERY_ROUNDS}
    filed = served.operator.post("/v1/erasure-requests", body, headers={"Idempotency-Key": uuid4().hex})
    deadline = time.monotonic() + max_seconds
    while True:
        request = dict(served.operator.get(f"/v1/erasure-requests/{filed['id']}"))
        if request["status"] == "completed":
            return request
        if request["status"] in ("failed", "requires_action") or time.monotonic() > deadline:
            raise ProcessDied(f"the request is {request['status']}: {request['reason']}\n{served.server.tail()}")
        time.sleep(0.05)


def _leaver(served: Served, run_id: str) -> str:
    """The first of those who contributed most: with few asked per round not everybody did."""
    counts: dict[str, int] = {}
    for task in served.list(f"/v1/runs/{run_id}/tasks"):
        counts[task["client_name"]] = counts.get(task["client_name"], 0) + (task["status"] == "done")
    return min(counts, key=lambda name: (-counts[name], name))


def _spec(served: Served, topology: str, num_clients: int) -> dict[str, Any]:
    spec = {
        "name": topology,
        "model": {"name": "mlp", "params": {"input_shape": [8, 8], "num_classes": 10}},
        "topology": TOPOLOGIES[topology],
        "training": {"algorithm": "fedavg", "clients_per_round": min(CLIENTS_PER_ROUND, num_clients)},
        "local": {"epochs": 3, "batch_size": 8, "learning_rate": 0.1},
        "validation": {"data": "builtin:digits", "every": ROUNDS},
        "stop": {"rounds": ROUNDS},
    }
    upload = served.operator.upload
    return run_file.resolve(spec, lambda path: str(upload(path, federation_id=served.federation_id)["digest"]))


def _instant(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="lethe bench erasure", description=__doc__)
    parser.add_argument("--json", action="store_true", help="JSON lines")
    parser.add_argument("--clients", type=lambda text: [int(part) for part in text.split(",")], default=[10, 100])
    parser.add_argument("--topology", choices=[*TOPOLOGIES], action="append", help="only this one; may be repeated")
    parser.add_argument("--max-seconds", type=float, default=300, help="give a cell up after this long")
    options = parser.parse_args(argv)
    printer = Printer(as_json=options.json, benchmark="erasure")
    failures = 0
    for num_clients in options.clients:
        for topology in options.topology or TOPOLOGIES:
            try:
                with tidy_when_terminated():
                    printer.row(measure(topology, num_clients, options.max_seconds))
            except ProcessDied as error:
                failures += 1
                print(f"{topology}, {num_clients} clients: {error}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
