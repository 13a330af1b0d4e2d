"""Who holds which samples: the scenario's data, divided among its clients."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lethe.failures import UNUSABLE, CommandFailed
from lethe.simulation.scenario import Scenario
from services.core.seeds import derive
from services.data.data_folders import find
from services.data.dataset import Array, DataUnusable
from services.data.partition import partition
from services.data.sources import load
from services.data.spoilt import spoil
from services.training.task import Classifier, ClientTask, LeavesOut

if TYPE_CHECKING:
    from torch import Tensor

KEPT_CLIENTS = 4096
"""Clients whose samples stay in memory."""


class OwnTaskData:
    """Clients with a task of one's own: each has what its class makes of the text that `data.source` gives it."""

    def __init__(self, scenario: Scenario, folders: Sequence[Path]) -> None:
        """Raises CommandFailed when the first client's task cannot be made."""
        self._scenario, self._folders = scenario, folders
        self._numbers = {name: number for number, name in enumerate(scenario.names)}
        self.task_of = lru_cache(maxsize=KEPT_CLIENTS)(self._task_of)
        self.task_of(scenario.names[0])

    def test_set(self) -> dict[str, Array]:
        """The coordinator cannot judge a model that it does not know."""
        return {}

    def initial_weights(self) -> dict[str, Tensor]:
        """Drawn by the first client's task from the run's seed, as `lethe models init` does."""
        from worker.first_weights import first_weights

        run = self._scenario.run
        return first_weights(self.task_of(self._scenario.names[0]), run.model, run.seed)

    def _task_of(self, name: str, left_out: frozenset[int] = frozenset()) -> ClientTask:
        from worker.task_loading import TaskUnusable, load_task

        source, number = self._scenario.data.source, self._numbers[name]
        text = source.replace("{number}", str(number)).replace("{clients}", str(len(self._numbers)))
        try:
            task = load_task(self._scenario.task or "", text, self._folders)
        except TaskUnusable as error:
            raise CommandFailed(f"task: {error}", exit_code=UNUSABLE) from error
        if left_out:
            self._leave_out(task, left_out)
        return task

    def unknown(self, name: str, samples: frozenset[int]) -> list[int]:
        """The samples among these that the client does not have."""
        return sorted(self._leave_out(self._task_of(name), samples))

    def _leave_out(self, task: ClientTask, samples: frozenset[int]) -> Collection[int]:
        if not isinstance(task, LeavesOut):
            raise CommandFailed(
                f"the task {type(task).__name__} cannot leave samples out: give it leave_out(samples)",
                exit_code=UNUSABLE,
            )
        return task.leave_out(samples)


class ClientData:
    def __init__(self, scenario: Scenario, folders: Sequence[Path]) -> None:
        """Raises CommandFailed when the data cannot be had or divided."""
        self._data, self._seed, self._folders = scenario.data, scenario.seed, folders
        self._numbers = {name: number for number, name in enumerate(scenario.names)}
        audited = any(event.audit is not None for event in scenario.script)
        try:
            self._whole = load(scenario.data.source, folders)
            self._train = self._divided(self._whole.y_train, "train")
            keep_tests = scenario.run.validation.at_clients or audited
            self._test = self._divided(self._whole.y_test, "test") if keep_tests else None
            if keep_tests and self._test is None:
                raise ValueError("with partition random clients hold no test samples: no at_clients, no audit")
        except (DataUnusable, ValueError) as error:
            raise CommandFailed(f"data: {error}", exit_code=UNUSABLE) from error
        self.task_of = lru_cache(maxsize=KEPT_CLIENTS)(self._task_of)

    def test_set(self) -> dict[str, Array]:
        """What the coordinator judges models on; empty when the source has no test samples."""
        num_all = len(self._whole.y_test)
        wanted = min(self._data.test_samples or num_all, num_all)
        order = np.random.default_rng(derive(self._seed, "test-samples")).permutation(num_all)[:wanted]
        rows = np.sort(order)
        return {"x": self._whole.x_test[rows], "y": self._whole.y_test[rows]} if wanted else {}

    def _task_of(self, name: str, left_out: frozenset[int] = frozenset()) -> Classifier:
        """What the client trains on, without the samples that it must leave out."""
        number = self._numbers[name]
        test = np.empty(0, dtype=np.int64) if self._test is None else self._test[number]
        data = self._whole.take(self._rows(number), test)
        if (how := self._data.spoilt.get(name)) is not None:
            num_classes = int(self._whole.y_train.max()) + 1
            data = spoil(data, how, num_classes, derive(self._seed, "spoilt", number))
        task = Classifier(data, self._folders)
        if left_out:
            task.leave_out(left_out)
        return task

    def unknown(self, name: str, samples: frozenset[int]) -> list[int]:
        """The samples among these that the client does not have."""
        return self._whole.take(self._rows(self._numbers[name]), np.empty(0, dtype=np.int64)).unknown(samples)

    def _rows(self, number: int) -> Array:
        generator = np.random.default_rng(derive(self._seed, "samples", number))
        most = self._data.samples_per_client
        if self._train is None:
            return np.sort(generator.choice(len(self._whole.y_train), most, replace=False))
        rows = self._train[number]
        if most is None or len(rows) <= most:
            return rows
        return np.sort(generator.permutation(rows)[:most])

    def _divided(self, y: Array, part: str) -> list[Array] | None:
        """None: everybody draws its own."""
        kind, _, argument = self._data.partition.partition(":")
        num = len(self._numbers)
        if kind == "random":
            most = self._data.samples_per_client
            if most is not None and most > len(y) and part == "train":
                raise ValueError(f"samples_per_client is {most}; the source has {len(y)} training samples")
            return None
        if kind == "writer":
            return _by_group(self._groups(argument, part, len(y)), num, self._seed)
        return list(partition(y, num, self._data.partition, self._seed))

    def _groups(self, file: str, part: str, num_samples: int) -> Array:
        path = find(file, self._folders)
        with np.load(path, allow_pickle=False) as arrays:
            key = f"writer_{part}"
            if key not in arrays or len(arrays[key]) != num_samples:
                raise DataUnusable(f"{path} needs an array {key} with a number for each of the {num_samples} samples")
            return np.asarray(arrays[key])


def _by_group(groups: Array, num_parts: int, seed: int) -> list[Array]:
    """Whole groups, dealt out in a seeded order."""
    found = np.unique(groups)
    if len(found) < num_parts:
        raise ValueError(f"{len(found)} writers cannot be {num_parts} clients")
    shuffled = np.random.default_rng(derive(seed, "writers")).permutation(found)
    return [np.flatnonzero(np.isin(groups, part)) for part in np.array_split(shuffled, num_parts)]
