"""Federated averaging as a plain PyTorch program: no server, no files, no network. The yardstick of training.py.

Run as a module it is one of several trainers: it reads the weights (float32, one flat vector) from standard input,
trains each of its clients from them, writes the sum of the results to standard output, and begins again until the
input ends.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from benchmarks.processes import ROOT

if TYPE_CHECKING:
    from torch import nn

Floats = npt.NDArray[np.float32]


class Trainer:
    """Some clients, trained one after the other with one model and SGD by hand (torch.optim loads the compiler)."""

    def __init__(self, files: Sequence[Path], batch_size: int, learning_rate: float) -> None:
        import torch

        torch.set_num_threads(1)
        self._batch_size, self._learning_rate = batch_size, learning_rate
        self._model = make_model()
        self._data = []
        for file in files:
            with np.load(file, allow_pickle=False) as arrays:
                inputs, labels = torch.from_numpy(arrays["x_train"]), torch.from_numpy(arrays["y_train"])
            self._data.append((inputs[:, None].float() / 255, labels.long()))

    def train_all(self, weights: Floats, seed: int) -> Floats:
        """The sum over the clients of the weights after one local epoch from `weights`."""
        total = np.zeros_like(weights)
        for number, (inputs, labels) in enumerate(self._data):
            total += self._train(weights, inputs, labels, seed * 1000 + number)
        return total

    def _train(self, weights: Floats, inputs: Any, labels: Any, seed: int) -> Floats:
        import torch
        from torch.nn.functional import cross_entropy
        from torch.nn.utils import parameters_to_vector, vector_to_parameters

        vector_to_parameters(torch.from_numpy(weights.copy()), self._model.parameters())
        parameters = list(self._model.parameters())
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
        for rows in torch.split(order, self._batch_size):
            loss = cross_entropy(self._model(inputs[rows]), labels[rows])
            gradients = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter.add_(gradient, alpha=-self._learning_rate)
        trained: Floats = parameters_to_vector(self._model.parameters()).detach().numpy()
        return trained


def make_model() -> nn.Module:
    from services.models.build import build
    from services.wire.v1.runs import ModelSpec

    return build(ModelSpec(name="lenet5", params={"input_shape": [28, 28], "num_classes": 10}), seed=0)


def initial_weights() -> Floats:
    from torch.nn.utils import parameters_to_vector

    weights: Floats = parameters_to_vector(make_model().parameters()).detach().numpy()
    return weights


def in_one_process(files: Sequence[Path], rounds: int, batch_size: int, learning_rate: float) -> tuple[float, float]:
    """(seconds, CPU seconds) for the rounds, after one that is not counted."""
    trainer = Trainer(files, batch_size, learning_rate)
    weights = trainer.train_all(initial_weights(), 0) / np.float32(len(files))
    started, cpu_started = time.perf_counter(), time.process_time()
    for number in range(1, rounds + 1):
        weights = trainer.train_all(weights, number) / np.float32(len(files))
    return time.perf_counter() - started, time.process_time() - cpu_started


def in_processes(
    num_processes: int, files: Sequence[Path], rounds: int, batch_size: int, learning_rate: float
) -> float:
    """Seconds with the clients dealt out to long-lived processes; again one round first, with starts and imports."""
    with ExitStack() as stack:
        trainers = []
        for number in range(num_processes):
            command = [sys.executable, "-m", "benchmarks.plain_loop", str(batch_size), str(learning_rate)]
            command += map(str, files[number::num_processes])
            child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
            stack.callback(_end, child)
            trainers.append(child)
        weights = _round(trainers, initial_weights()) / np.float32(len(files))
        started = time.perf_counter()
        for _ in range(rounds):
            weights = _round(trainers, weights) / np.float32(len(files))
        return time.perf_counter() - started


def _round(trainers: Sequence[subprocess.Popen[bytes]], weights: Floats) -> Floats:
    for trainer in trainers:
        assert trainer.stdin is not None
        trainer.stdin.write(weights.tobytes())
        trainer.stdin.flush()
    total = np.zeros_like(weights)
    for trainer in trainers:
        assert trainer.stdout is not None
        total += np.frombuffer(trainer.stdout.read(weights.nbytes), np.float32)
    return total


def _end(child: subprocess.Popen[bytes]) -> None:
    """Closing its input ends a trainer that is well."""
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            pipe.close()
    try:
        child.wait(5)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _serve_pipe() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("batch_size", type=int)
    parser.add_argument("learning_rate", type=float)
    parser.add_argument("files", nargs="+", type=Path)
    options = parser.parse_args()
    trainer = Trainer(options.files, options.batch_size, options.learning_rate)
    num_bytes, seed = initial_weights().nbytes, 0
    while len(data := sys.stdin.buffer.read(num_bytes)) == num_bytes:
        sys.stdout.buffer.write(trainer.train_all(np.frombuffer(data, np.float32), seed).tobytes())
        sys.stdout.buffer.flush()
        seed += 1


if __name__ == "__main__":
    _serve_pipe()
