"""Client-updates per second on one core.

First a small model (MLP 784-80-10, 200 made-up samples, batches of 20, one epoch), without a coordinator, in four
ways, in turn, several times over: a plain PyTorch loop, one client after the other; ours with an update for every
client; ours with the weighted sum only; and torch.func's vmap over stacked clients. Then a tiny one (MLP 64-16-10, 20
digits a client) in simulated federations of growing size, a hundred clients a round, coordinator included.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks.figures import Printer
from benchmarks.processes import status_kb
from services.data.sources import Dataset
from services.training.local_spec import LocalTraining
from services.training.task import Classifier
from services.wire.v1.runs import ModelSpec

if TYPE_CHECKING:
    from torch import Tensor, nn

    from lethe.simulation import Progress
    from services.training.grouped import Member

LOCAL: Final = LocalTraining(epochs=1, batch_size=20, learning_rate=0.05)
MODEL: Final = ModelSpec(name="mlp", params={"input_shape": [784], "num_classes": 10, "hidden": [80]})


def make_members(num_clients: int, num_samples: int) -> list[Member]:
    from services.training.grouped import Member

    random = np.random.default_rng(0)
    members = []
    for number in range(num_clients):
        x = random.random((num_samples, 784), dtype=np.float32)
        y = random.integers(0, 10, num_samples)
        members.append(Member(Classifier(Dataset(x, y, x[:0], y[:0])), seed=number))
    return members


def plain(members: Sequence[Member], model: nn.Module) -> list[dict[str, Tensor]]:
    """What one writes without thinking of speed: load, train, take the difference; then the next client."""
    import torch
    from torch.nn.functional import cross_entropy

    base = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    updates = []
    for member in members:
        model.load_state_dict(base)
        optimizer = torch.optim.SGD(model.parameters(), lr=LOCAL.learning_rate)
        for inputs, labels in member.task.train_batches(LOCAL.batch_size, member.seed):
            optimizer.zero_grad()
            torch.autograd.backward(cross_entropy(model(inputs), labels))
            optimizer.step()
        updates.append({name: tensor - base[name] for name, tensor in model.state_dict().items()})
    model.load_state_dict(base)
    return updates


def vmapped(members: Sequence[Member], model: nn.Module, stack_size: int) -> None:
    import torch
    from torch.func import functional_call, grad, vmap
    from torch.nn.functional import cross_entropy

    def loss(weights: dict[str, Tensor], inputs: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(functional_call(model, weights, (inputs,)), labels)

    gradients: Callable[..., dict[str, Tensor]] = vmap(grad(loss))
    base = {name: tensor.detach() for name, tensor in model.named_parameters()}
    for first in range(0, len(members), stack_size):
        group = members[first : first + stack_size]
        stacked = {name: tensor.expand(len(group), *tensor.shape).clone() for name, tensor in base.items()}
        streams = [member.task.train_batches(LOCAL.batch_size, member.seed) for member in group]
        for batches in zip(*streams, strict=True):
            inputs, labels = (torch.stack(parts) for parts in zip(*batches, strict=True))
            for name, gradient in gradients(stacked, inputs, labels).items():
                stacked[name].add_(gradient, alpha=-LOCAL.learning_rate)


def ways(members: Sequence[Member], model: nn.Module, group_size: int, stack_size: int) -> dict[str, Callable[[], Any]]:
    from services.training.grouped import train_each, train_sum

    weights = [float(member.task.num_train) for member in members]
    return {
        "plain_loop": lambda: plain(members, model),
        "per_client": lambda: list(train_each(members, model, LOCAL, group_size=group_size)),
        "aggregate_only": lambda: train_sum(members, weights, model, LOCAL, group_size=group_size),
        "vmap": lambda: vmapped(members, model, stack_size),
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="lethe bench scale", description=__doc__)
    parser.add_argument("--json", action="store_true", help="JSON lines")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--samples", type=int, default=200, help="per client")
    parser.add_argument("--group-size", type=int, default=20, help="clients that ours trains together")
    parser.add_argument("--stack-size", type=int, default=50, help="clients that vmap stacks")
    parser.add_argument("--repeats", type=int, default=5, help="of all ways in turn; the median counts; 0: none")
    parser.add_argument(
        "--populations", default="100,1000,10000,100000,1000000", help="clients of the simulated federations"
    )
    parser.add_argument("--rounds", type=int, default=10, help="of each simulation, a hundred clients each")
    options = parser.parse_args(argv)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch

    torch.set_num_threads(1)
    printer = Printer(as_json=options.json, benchmark="scale")
    if options.repeats:
        _compare_ways(options, printer)
        printer.new_table()
    for population in filter(None, options.populations.split(",")):
        printer.row(_in_a_process_of_its_own(simulate_population, int(population), options.rounds))
    return 0


def simulate_population(num_clients: int, num_rounds: int) -> dict[str, Any]:
    """The whole way of an update: claimed, trained, stored, recorded, aggregated, with its lineage."""
    import structlog

    from lethe.simulation import simulate
    from lethe.simulation.scenario import parse

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    seen: list[Progress] = []
    scenario = {
        "clients": num_clients,
        "data": {"source": "digits", "partition": "random", "samples_per_client": 20},
        "training": {"path": "stacked"},
        "run": {
            "model": {"name": "mlp", "params": {"input_shape": [8, 8], "num_classes": 10, "hidden": [16]}},
            "training": {"algorithm": "fedavg", "clients_per_round": min(100, num_clients)},
            "local": {"batch_size": 20, "learning_rate": 0.1},
            "retention": {"updates": "none"},
            "stop": {"rounds": num_rounds},
        },
    }
    results = simulate(parse(scenario), progress=seen.append)
    training_s = seen[-1].wall_s - seen[0].wall_s  # without setting up
    return {
        "clients": num_clients,
        "rounds": num_rounds,
        "set_up_s": round(seen[0].wall_s, 2),
        "seconds_per_round": round(training_s / num_rounds, 3),
        "updates_per_s": round(results.summary.client_updates / training_s, 1),
        "coordinator_share": round(1 - results.training_s / training_s, 3),
        "memory_mb": round(status_kb(os.getpid(), "VmHWM") / 1024),
    }


def _in_a_process_of_its_own(work: Callable[[int, int], dict[str, Any]], *arguments: int) -> dict[str, Any]:
    """So that its peak of memory is its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


def _compare_ways(options: argparse.Namespace, printer: Printer) -> None:
    members = make_members(options.clients, options.samples)
    runs = ways(members, members[0].task.model(MODEL), options.group_size, options.stack_size)
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(options.repeats + 1):
        for name, run in runs.items():
            started = time.perf_counter()
            run()
            if repeat:  # the first turn warms up
                seconds[name].append(time.perf_counter() - started)

    plain_s = statistics.median(seconds["plain_loop"])
    for name, taken in seconds.items():
        median_s = statistics.median(taken)
        printer.row(
            {
                "way": name,
                "clients": options.clients,
                "seconds": round(median_s, 4),
                "updates_per_s": round(options.clients / median_s, 1),
                "ratio": round(plain_s / median_s, 2),
            }
        )


if __name__ == "__main__":
    raise SystemExit(main())
