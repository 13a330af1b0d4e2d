"""How soon a new task reaches a worker that waits: many idle long polls on one coordinator process, then tasks appear.

`wake one`: runs for a single client, one after the other. `wake all`: one run for everybody at once. The latency counts
from the instant recorded for the opening of the round, which is read before its transaction commits, to the instant at
which the client has its claim's answer; `…_from_post_ms` counts from before the request that creates the run is sent.
Both clocks are this machine's.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

from benchmarks.coordination import run_spec, wait_for_line
from benchmarks.figures import Printer, percentile
from benchmarks.payload import Payload
from benchmarks.processes import ProcessDied, cpu_seconds, running, status_kb, tidy_when_terminated
from benchmarks.served import Backend, Served, client_names, serving

PAYLOAD_BYTES: Final = 4096
WAITING_POLLS: Final = "lethe_waiting_polls "


def measure(num_workers: int, repeats: int, backend: Backend, idle_s: float, max_seconds: float) -> dict[str, Any]:
    with serving(backend) as served:
        tokens = served.home / "tokens"
        tokens.write_text("\n".join(served.enrol(num_workers)))
        init = _upload_model(served)
        idle_kb = status_kb(served.server.pid, "VmRSS")
        out = served.home / "clients.json"
        arguments = ["benchmarks.clients", "--port", str(served.port), "--tokens", str(tokens), "--out", str(out)]
        with running(
            "clients", [*arguments, "--payload-bytes", str(PAYLOAD_BYTES)], served.home / "clients.log"
        ) as load:
            wait_for_line(load, "waiting", max_seconds)
            _wait_until_waiting(served, num_workers, max_seconds)
            waiting_kb, idle_cpu_share = status_kb(served.server.pid, "VmRSS"), _cpu_share(served.server.pid, idle_s)
            names = client_names(num_workers)
            stride = max(1, num_workers // repeats)
            chosen = [names[(number * stride) % num_workers] for number in range(repeats)]
            one = dict(_timed_run(served, init, [name], max_seconds) for name in chosen)
            everybody = dict([_timed_run(served, init, None, max_seconds)])
        receipts = json.loads(out.read_text())["receipts"]
        return {
            "workers": num_workers,
            "backend": backend,
            **_latencies("wake_one", one, _opened_at(served, one), receipts, repeats),
            **_latencies("wake_all", everybody, _opened_at(served, everybody), receipts, num_workers),
            "idle_cpu_share": round(idle_cpu_share, 3),
            "kb_per_worker": round((waiting_kb - idle_kb) / num_workers, 1),
            "rss_mb_idle": round(idle_kb * 1024 / 1e6, 1),
            "rss_mb_waiting": round(waiting_kb * 1024 / 1e6, 1),
        }


def _wait_until_waiting(served: Served, num_workers: int, max_seconds: float) -> None:
    """Until (nearly) all clients wait; at any moment some are between two polls."""
    deadline = time.monotonic() + max_seconds
    while (waiting := _num_waiting(served)) < 0.98 * num_workers:
        if time.monotonic() > deadline:
            raise ProcessDied(f"{waiting} of {num_workers} clients wait:\n{served.server.tail()}")
        time.sleep(0.2)


def _num_waiting(served: Served) -> float:
    with urlopen(f"http://127.0.0.1:{served.port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.removeprefix(WAITING_POLLS)) for line in lines if line.startswith(WAITING_POLLS))


def _cpu_share(pid: int, idle_s: float) -> float:
    """CPU seconds per second of a process that is left alone."""
    before_s = cpu_seconds(pid)
    time.sleep(idle_s)
    return (cpu_seconds(pid) - before_s) / idle_s


def _timed_run(served: Served, init: str, clients: Sequence[str] | None, max_seconds: float) -> tuple[str, float]:
    """(run, instant before it was asked for); returns once the run has ended."""
    posted_at = time.time()
    run_id = served.start_run(run_spec(init, rounds=1, clients=clients))
    served.wait_for_end(run_id, max_seconds)
    return run_id, posted_at


def _opened_at(served: Served, runs: dict[str, float]) -> dict[str, float]:
    opened = {}
    for run_id in runs:
        (first, *_) = served.list(f"/v1/runs/{run_id}/rounds")
        opened[run_id] = datetime.fromisoformat(first["opened_at"]).timestamp()
    return opened


def _latencies(
    name: str, posted: dict[str, float], opened: dict[str, float], receipts: list[dict[str, Any]], expected: int
) -> dict[str, float]:
    mine = [receipt for receipt in receipts if receipt["run"] in posted]
    if len(mine) != expected:
        raise ProcessDied(f"{name}: {len(mine)} tasks were received, {expected} expected")
    waits = [1000 * (receipt["at"] - opened[receipt["run"]]) for receipt in mine]
    trips = [1000 * (receipt["at"] - posted[receipt["run"]]) for receipt in mine]
    return {
        f"{name}_p50_ms": round(percentile(waits, 0.5), 2),
        f"{name}_p99_ms": round(percentile(waits, 0.99), 2),
        f"{name}_p99_from_post_ms": round(percentile(trips, 0.99), 2),
    }


def _upload_model(served: Served) -> str:
    path = Path(served.home / "init.safetensors")
    Payload(PAYLOAD_BYTES).write_model(path)
    return str(served.operator.blobs.upload(path, federation=served.federation_id).digest)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="lethe bench longpoll", description=__doc__)
    parser.add_argument("--json", action="store_true", help="JSON lines")
    parser.add_argument("--workers", type=int, default=1000, help="idle clients")
    parser.add_argument("--repeats", type=int, default=100, help="how often one of them is woken")
    parser.add_argument("--idle-s", type=float, default=25.0, help="how long they wait before the first is woken")
    parser.add_argument("--backend", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--max-seconds", type=float, default=120, help="give a run up after this long")
    options = parser.parse_args(argv)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    printer = Printer(as_json=options.json, benchmark="longpoll")
    with tidy_when_terminated():
        printer.row(measure(options.workers, options.repeats, options.backend, options.idle_s, options.max_seconds))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
