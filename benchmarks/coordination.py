"""What coordination costs: rounds without training, over N real client connections and payloads of several sizes.

Every cell has a coordinator of its own (`lethe serve`), and one process with all clients (clients.py). Seconds per
round are the median gap between checkpoints, without the first round; memory, CPU and bytes are of the whole cell.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.figures import Printer, median_gap
from benchmarks.payload import MB, Payload
from benchmarks.processes import Child, ProcessDied, Watch, free_port, running, tidy_when_terminated, wait_for_port
from benchmarks.served import Backend, Blobs, Served, serving
from benchmarks.streams import watched
from lethe import Client

LEASE_S: Final = 3600
"""Longer than any round here, because these clients send no heartbeats."""


@dataclass(frozen=True)
class Cell:
    num_clients: int
    payload_mb: float
    rounds: int
    max_seconds: float
    num_streams: int = 0
    """Streams of the federation's events that somebody holds open meanwhile."""

    @property
    def payload_bytes(self) -> int:
        return int(self.payload_mb * MB)

    @property
    def moved_mb(self) -> float:
        """Payload in both directions, all rounds."""
        return 2 * self.num_clients * self.payload_mb * self.rounds

    @property
    def disk_bytes(self) -> int:
        """Two rounds of updates may lie on the disk at once, and every model."""
        return (3 * self.num_clients + 2 * self.rounds + 4) * self.payload_bytes


def rounds_for(payload_mb: float, quick: bool) -> int:
    if payload_mb < 1:
        return 6 if quick else 30
    if payload_mb < 50:
        return 4 if quick else 8
    return 3 if quick else 4


def measure(cell: Cell, backend: Backend, blobs: Blobs) -> dict[str, Any]:
    with serving(backend, blobs) as served, Watch(served.server.pid) as watch, Watch(*served.database_pids) as database:
        tokens = served.home / "tokens"
        tokens.write_text("\n".join(served.enrol(cell.num_clients)))
        init = _upload_model(served, cell)
        out = served.home / "clients.json"
        arguments = _load(cell, served.port, out, "--tokens", str(tokens))
        with running("clients", arguments, served.home / "clients.log") as load:
            wait_for_line(load, "waiting")
            before_s, database_before_s = watch.cpu_s(), database.cpu_s()
            with watched(served, cell.num_streams):
                run_id = served.start_run(run_spec(init, cell.rounds))
                load.wait(cell.max_seconds)
                served.wait_for_end(run_id, 60)
            cpu_s, database_cpu_s = watch.cpu_s() - before_s, database.cpu_s() - database_before_s
        instants = sorted(_instant(point["created_at"]) for point in served.list(f"/v1/runs/{run_id}/checkpoints"))
        result = json.loads(out.read_text())
    row = _row(cell, instants, cpu_s, watch, result)
    row |= {"backend": backend, "blobs": blobs, "streams": cell.num_streams}
    if database.peak_rss_mb:
        row["database_cpu_s"] = round(database_cpu_s / cell.rounds, 4)
    return row


def measure_bare(cell: Cell, *, durable: bool = False) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="lethe-bench-") as directory:
        home, port = Path(directory), free_port()
        raw_bytes = Payload(cell.payload_bytes).raw_bytes
        arguments = ["benchmarks.bare", "--port", str(port), "--clients", str(cell.num_clients)]
        arguments += ["--durable"] if durable else []
        with running("bare", [*arguments, "--num-bytes", str(raw_bytes)], home / "bare.log") as server:
            wait_for_port(server, port)
            with Watch(server.pid) as watch, Client(f"http://127.0.0.1:{port}", None) as client:
                out, before_s = home / "clients.json", watch.cpu_s()
                arguments = _load(cell, port, out, "--bare", "--clients", str(cell.num_clients))
                with running("clients", arguments, home / "clients.log") as load:
                    load.wait(cell.max_seconds)
                cpu_s = watch.cpu_s() - before_s
                instants = client.request("GET", "/published")["at"]
        return _row(cell, instants, cpu_s, watch, json.loads(out.read_text()))


def run_spec(init: str, rounds: int, clients: Sequence[str] | None = None) -> dict[str, Any]:
    spec = {
        "name": "benchmark",
        "model": {"name": "custom"},
        "init": init,
        "stop": {"rounds": rounds},
        "retention": {"updates": "none"},
        "lease_s": LEASE_S,
    }
    return spec if clients is None else {**spec, "clients": list(clients)}


def wait_for_line(child: Child, line: str, timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while line not in child.log.read_text("utf-8").splitlines():
        child.expect_alive()
        if time.monotonic() > deadline:
            raise ProcessDied(f"{child.name} did not say {line!r}:\n{child.tail()}")
        time.sleep(0.02)


def _upload_model(served: Served, cell: Cell) -> str:
    model = served.home / "init.safetensors"
    Payload(cell.payload_bytes).write_model(model)
    digest = served.operator.blobs.upload(model, federation=served.federation_id).digest
    model.unlink()
    return str(digest)


def _load(cell: Cell, port: int, out: Path, *more: str) -> list[str]:
    fixed = ["benchmarks.clients", "--port", str(port), "--tasks", str(cell.rounds), "--out", str(out)]
    return [*fixed, "--payload-bytes", str(cell.payload_bytes), *more]


def _row(cell: Cell, instants: Sequence[float], cpu_s: float, watch: Watch, clients: dict[str, Any]) -> dict[str, Any]:
    if len(instants) != cell.rounds + 1 or clients["num_submitted"] != cell.rounds * cell.num_clients:
        raise ProcessDied(f"{len(instants) - 1} rounds of {cell.rounds}, {clients['num_submitted']} updates")
    wire_mb = (clients["num_sent"] + clients["num_received"]) / MB
    return {
        "clients": cell.num_clients,
        "payload_mb": cell.payload_mb,
        "seconds_per_round": round(median_gap(instants), 5),
        "peak_rss_mb": round(watch.peak_rss_mb, 1),
        "cpu_s": round(cpu_s / cell.rounds, 4),
        "cpu_ms_per_mb": round(cpu_s * 1000 / cell.moved_mb, 3),
        "wire_ratio": round(wire_mb / cell.moved_mb, 4),
        "rounds": cell.rounds,
        "put_off": clients["num_put_off"],
    }


def _compared(cell: Cell, backend: Backend, blobs: Blobs) -> dict[str, Any]:
    """Bare, ours, bare: so that a neighbour who comes or goes is seen by both. And the least that durability costs."""
    bare = [measure_bare(cell)]
    row = measure(cell, backend, blobs)
    durable_s = measure_bare(cell, durable=True)["seconds_per_round"]
    bare.append(measure_bare(cell))
    bare_s = statistics.mean(other["seconds_per_round"] for other in bare)
    row["bare_seconds_per_round"] = round(bare_s, 5)
    row["ratio"] = round(row["seconds_per_round"] / bare_s, 2)
    row["durable_seconds_per_round"] = durable_s
    row["durable_ratio"] = round(durable_s / bare_s, 2)
    row["bare_cpu_ms_per_mb"] = round(statistics.mean(other["cpu_ms_per_mb"] for other in bare), 3)
    row["bare_peak_rss_mb"] = max(other["peak_rss_mb"] for other in bare)
    return row


def _instant(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="lethe bench coordination", description=__doc__)
    parser.add_argument("--json", action="store_true", help="JSON lines")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, and only small cells unless they are given")
    parser.add_argument("--clients", type=_numbers(int), help="like 2,10,50 (the default)")
    parser.add_argument("--payload-mb", type=_numbers(float), help="like 0.25,10,100 (the default)")
    parser.add_argument("--rounds", type=int, help="per cell; by size when absent")
    parser.add_argument("--backend", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--blobs", choices=["file", "postgres"], default="file")
    parser.add_argument("--bare", action="store_true", help="measure the bare reference beside it, and a durable one")
    parser.add_argument("--streams", type=int, default=0, help="so many streams of events stay open meanwhile")
    parser.add_argument("--max-seconds", type=float, default=600, help="give a cell up after this long")
    options = parser.parse_args(argv)
    if options.blobs == "postgres" and options.backend != "postgres":
        parser.error("--blobs postgres needs --backend postgres")

    printer = Printer(as_json=options.json, benchmark="coordination")
    failures = 0
    for payload_mb in options.payload_mb or ([0.25, 10] if options.quick else [0.25, 10, 100]):
        for num_clients in options.clients or ([2, 10] if options.quick else [2, 10, 50]):
            rounds = options.rounds or rounds_for(payload_mb, options.quick)
            cell = Cell(num_clients, payload_mb, rounds, options.max_seconds, options.streams)
            try:
                if shutil.disk_usage(tempfile.gettempdir()).free < 2 * cell.disk_bytes:
                    raise ProcessDied(f"less than {2 * cell.disk_bytes / 1e9:.0f} GB free for temporary files")
                how = _compared if options.bare else measure
                with tidy_when_terminated():
                    printer.row(how(cell, options.backend, options.blobs))
            except ProcessDied as error:
                failures += 1
                print(f"{num_clients} clients, {payload_mb} MB: {error}", file=sys.stderr)
    return 1 if failures else 0


def _numbers(kind: type) -> Any:
    return lambda text: [kind(part) for part in text.split(",")]


if __name__ == "__main__":
    raise SystemExit(main())
