"""Clients' work, computed by the worker's own code: one by one or stacked, in this process or in several.

What is computed together is decided before, so a result depends on its batch alone and not on where or when it is made.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from lethe.simulation.client_data import ClientData, OwnTaskData
from services.training.local import TrainingFailed, write_update
from services.wire.v1.work import Failure, TaskGrant
from worker.execution import GrantedTask, Result, TaskRunner, describe
from worker.failures import WorkFailed, failure_of

T = TypeVar("T")
Outcome = Result | Failure


@dataclass(frozen=True)
class Piece:
    """One client's task."""

    client: str
    grant: TaskGrant
    left_out: frozenset[int]
    """Samples that the client must leave out."""


@dataclass(frozen=True)
class Batch:
    """What is computed together, all from the same weights."""

    pieces: tuple[Piece, ...]
    files: Mapping[str, Path]
    """Files of the weights and of whatever else the tasks name, by digest."""


class Trainer:
    """Each process has one."""

    def __init__(self, data: ClientData | OwnTaskData, scratch: Path) -> None:
        self.data = data
        self._runner: TaskRunner | None = None
        self._scratch = scratch
        self.busy_s = 0.0
        """Wall-clock time spent on clients' work."""

    def carry_out(self, batch: Batch) -> list[Outcome]:
        """Carry the batch out; results are in the order of the pieces."""
        started = time.perf_counter()
        outcomes = self._carry_out(batch)
        self.busy_s += time.perf_counter() - started
        return outcomes

    def _carry_out(self, batch: Batch) -> list[Outcome]:
        runner, first = self._ready(batch.pieces[0]), batch.pieces[0]
        runner.work_for(self.data.task_of(first.client, first.left_out))
        try:
            if len(batch.pieces) > 1:
                return list(self._stacked(runner, batch))
            return [runner.execute(_granted(first, batch))]
        except Exception as error:
            return [failure_of(error, piece.grant.lease_token) for piece in batch.pieces]

    def _stacked(self, runner: TaskRunner, batch: Batch) -> Iterator[Outcome]:
        from services.training.grouped import Member, train_each

        first = batch.pieces[0]
        model = runner.model_with(_granted(first, batch))
        members = [Member(self.data.task_of(p.client, p.left_out), p.grant.seed) for p in batch.pieces]
        trained = train_each(members, model, first.grant.local, group_size=len(members))
        for piece, member, outcome in zip(batch.pieces, members, trained, strict=True):
            try:
                if isinstance(outcome, TrainingFailed):
                    raise outcome
                path = runner.scratch / f"{uuid4().hex}.safetensors"
                write_update(path, outcome.delta)
                yield Result(describe(path), member.task.num_train, outcome.metrics)
            except TrainingFailed as failed:
                yield failure_of(WorkFailed(str(failed)), piece.grant.lease_token)

    def _ready(self, piece: Piece) -> TaskRunner:
        if self._runner is None:
            self._runner = TaskRunner(lambda: self.data.task_of(piece.client, piece.left_out), "cpu", self._scratch)
            self._runner.load()
        return self._runner


def _granted(piece: Piece, batch: Batch) -> GrantedTask:
    grant = piece.grant
    return GrantedTask(grant, batch.files[grant.weights], lambda fraction: None, lambda: False, batch.files)


class AtOnce(Executor):
    """Does the work where it is given, when it is given."""

    def submit(self, work: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        done: Future[T] = Future()
        try:
            done.set_result(work(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done


_trainer: Trainer | None = None
"""The trainer of a child process: made before the fork, so that all share the memory of the data."""


def several(trainer: Trainer, num_processes: int) -> ProcessPoolExecutor:
    """Child processes that train. To be called before anything of this process runs in threads."""
    global _trainer
    _trainer = trainer
    pool = ProcessPoolExecutor(num_processes, multiprocessing.get_context("fork"), _end_with_the_parent)
    pool.submit(os.getpid).result()  # the first work starts all processes
    return pool


def carry_out_there(batch: Batch) -> list[Outcome]:
    """Carry a batch out in a child process."""
    if _trainer is None:
        raise RuntimeError("this process was not made by `several`")
    return _trainer.carry_out(batch)


def _end_with_the_parent() -> None:
    """A child would wait for ever for a parent that was killed."""
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
