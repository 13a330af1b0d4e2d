"""Federated training end to end against a plain PyTorch loop that does the same SGD steps.

LeNet-5, 10 clients of 600 images, batches of 64, one local epoch, 10 rounds: 1000 steps. Ours: a coordinator and two
`lethe worker --fleet` processes of five clients. Plain: the loop of plain_loop.py in one process and in two. Each does
one round first that is not counted, so that the start of processes and the import of torch are left out of all figures.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks import plain_loop
from benchmarks.figures import Printer
from benchmarks.processes import ProcessDied, Watch, tidy_when_terminated
from benchmarks.served import Served, serving

DATA_VARIABLE: Final = "LETHE_BENCH_DATA"
LEARNING_RATE: Final = 0.05
ONLINE_WITHIN_S: Final = 90.0


def write_shards(directory: Path, num_clients: int, num_samples: int, source: Path | None) -> list[Path]:
    """One npz per client: uint8 images of 28 x 28 and their labels, from an MNIST-like npz or made up."""
    total = num_clients * num_samples
    if source is not None:
        with np.load(source, allow_pickle=False) as arrays:
            images, labels = arrays["x_train"][:total], arrays["y_train"][:total]
        if images.shape != (total, 28, 28):
            raise ProcessDied(f"{source} has no {total} images of 28 x 28 under x_train")
    else:
        random = np.random.default_rng(0)
        labels = random.integers(0, 10, total)
        patterns = random.integers(0, 128, (10, 28, 28))
        images = patterns[labels] + random.integers(0, 128, (total, 28, 28))
    files = []
    for number in range(num_clients):
        rows = slice(number * num_samples, (number + 1) * num_samples)
        files.append(directory / f"shard-{number}.npz")
        np.savez(files[-1], x_train=images[rows].astype(np.uint8), y_train=labels[rows].astype(np.int64))
    return files


def measure_ours(
    files: Sequence[Path], rounds: int, batch_size: int, num_processes: int, max_seconds: float
) -> tuple[float, float]:
    """(seconds, CPU seconds of the coordinator and the workers)."""
    with serving() as served, ExitStack() as stack:
        tokens, fleets = served.enrol(len(files)), []
        for number in range(num_processes):
            own = slice(number, None, num_processes)
            sources = [f"npz:{file}" for file in files[own]]
            fleets.append(stack.enter_context(served.fleet(f"fleet-{number}", tokens[own], sources)))
        _wait_until_online(served)
        _run_seconds(served, 1, batch_size, max_seconds)
        with Watch(served.server.pid, *(fleet.pid for fleet in fleets)) as watch:
            before_s = watch.cpu_s()
            seconds = _run_seconds(served, rounds, batch_size, max_seconds)
            return seconds, watch.cpu_s() - before_s


def _run_seconds(served: Served, rounds: int, batch_size: int, max_seconds: float) -> float:
    spec: dict[str, Any] = {
        "name": "benchmark",
        "model": {"name": "lenet5", "params": {"input_shape": [28, 28], "num_classes": 10}},
        "local": {"epochs": 1, "batch_size": batch_size, "learning_rate": LEARNING_RATE},
        "stop": {"rounds": rounds},
    }
    started = time.perf_counter()
    served.wait_for_end(served.start_run(spec), max_seconds, every_s=0.05)
    return time.perf_counter() - started


def _wait_until_online(served: Served) -> None:
    deadline = time.monotonic() + ONLINE_WITHIN_S
    path = f"/v1/federations/{served.federation_id}/clients"
    while not all(client["online"] for client in served.list(path)):
        if time.monotonic() > deadline:
            logs = "\n".join(log.read_text()[-2000:] for log in served.home.glob("fleet-*.log"))
            raise ProcessDied(f"not all workers came online:\n{logs}")
        time.sleep(0.1)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="lethe bench training", description=__doc__)
    parser.add_argument("--json", action="store_true", help="JSON lines")
    parser.add_argument("--quick", action="store_true", help="measure the plain loop once, not before and after ours")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--samples", type=int, default=600, help="per client")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--processes", type=int, default=2, help="of workers, and of the plain loop")
    parser.add_argument("--data", type=Path, help=f"an npz like MNIST's; {DATA_VARIABLE}, or made up, when absent")
    parser.add_argument("--max-seconds", type=float, default=300, help="give a run up after this long")
    options = parser.parse_args(argv)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    source = options.data or (Path(os.environ[DATA_VARIABLE]) if os.environ.get(DATA_VARIABLE) else None)
    printer = Printer(as_json=options.json, benchmark="training")
    with tidy_when_terminated(), tempfile.TemporaryDirectory(prefix="lethe-bench-") as directory:
        files = write_shards(Path(directory), options.clients, options.samples, source)
        work = (files, options.rounds, options.batch_size)
        one_s, one_cpu_s = plain_loop.in_one_process(*work, LEARNING_RATE)
        several_s = plain_loop.in_processes(options.processes, *work, LEARNING_RATE)
        ours_s, ours_cpu_s = measure_ours(*work, options.processes, options.max_seconds)
        plain_s = several_s
        if not options.quick:  # before and after ours: a neighbour who comes or goes is seen by both
            plain_s = (several_s + plain_loop.in_processes(options.processes, *work, LEARNING_RATE)) / 2
    steps = options.clients * options.rounds * -(-options.samples // options.batch_size)
    printer.row(
        {
            "clients": options.clients,
            "rounds": options.rounds,
            "steps": steps,
            "seconds": round(ours_s, 3),
            "plain_one_process_s": round(one_s, 3),
            "plain_processes_s": round(plain_s, 3),
            "processes": options.processes,
            "ratio": round(ours_s / plain_s, 2),
            "cpu_s": round(ours_cpu_s, 3),
            "plain_cpu_s": round(one_cpu_s, 3),
            "data": "npz" if source else "synthetic",
            "excluded": "process start, imports and one warm-up round",
        }
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
