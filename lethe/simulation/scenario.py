"""Scenario files: what is trained on whose data, how long clients take, what happens when, when it ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Final, Literal

import yaml
from pydantic import Field, JsonValue, ValidationError, model_validator

from lethe.failures import UNUSABLE, CommandFailed
from lethe.run_file import PLACEHOLDER, describe
from services.audit.spec import AuditPlan
from services.core.errors import Rejected
from services.data.spoilt import Spoilt
from services.models.spec import CUSTOM
from services.models.spec import validate as validate_model
from services.simulation.durations import Duration, Fixed
from services.wire.message import Message, Name
from services.wire.v1.erasure import ErasureCreate
from services.wire.v1.runs import RunSpec

Count = Annotated[int, Field(ge=1, le=1_000_000)]
VirtualSeconds = Annotated[float, Field(ge=0, le=1e9)]

PARTITIONS: Final = ("iid", "dirichlet", "by-class", "writer", "random")
_SERVED: Final[Mapping[str, Callable[[Sequence[float]], float]]] = {"best": max, "mean": fmean, "worst": min}
LONG_LEASE_S: Final = 86400.0
"""Nobody goes silent in a simulation, so leases need not be short."""


class Data(Message):
    """Whose samples are where. The test part of the source stays with the coordinator, which judges models on it."""

    source: str = Field(
        examples=["digits", "mnist", "npz:mnist.npz", "records-{number}.npz"],
        description="As for a worker's `--data`; with a `task`, what that is given, client by client.",
    )
    partition: str = Field(
        default="iid",
        description="`iid`, `dirichlet:ALPHA`, `by-class[:RATIO]`, `writer:FILE.npz` (real groups of samples), or "
        "`random`: everybody draws on its own, so that two clients may hold the same sample.",
    )
    samples_per_client: Count | None = Field(default=None, description="At most so many each; needed with random.")
    test_samples: Count | None = Field(default=None, description="Judge models on so many; all when absent.")
    spoilt: dict[Name, Spoilt] = Field(
        default_factory=dict,
        description="Clients whose training samples are useless (`noisy`: shuffled inputs) or harmful (`adversarial`: "
        "wrong labels).",
    )

    @model_validator(mode="after")
    def _partition_is_known(self) -> Data:
        if self.partition.partition(":")[0] not in PARTITIONS:
            raise ValueError(f"partition: found {self.partition!r}; known are {', '.join(PARTITIONS)}")
        if self.partition == "random" and self.samples_per_client is None:
            raise ValueError("partition random needs samples_per_client")
        return self


class Training(Message):
    """How clients' training is computed. Part of the scenario, because the two paths agree only nearly."""

    path: Literal["single", "stacked"] = Field(
        default="single",
        description="single: one client after the other, by the worker's own code; stacked: the clients that are asked "
        "at the same instant, together (mlp with sgd; everything else, and asynchronous training, one by one).",
    )
    group_size: Annotated[int, Field(ge=1, le=1000)] = Field(default=20, description="stacked: clients in a group.")


class Event(Message):
    """One thing that happens: exactly one of `at_s`, `after_round`, `when`; exactly one of `erase`, `join`, `leave`."""

    at_s: VirtualSeconds | None = None
    after_round: Annotated[int, Field(ge=0, le=1_000_000)] | None = Field(
        default=None, description="As soon as every line has published this round."
    )
    when: Literal["finished"] | None = Field(default=None, description="finished: the run has ended.")

    erase: list[Name] | None = Field(default=None, description="Names of clients to forget: client-0, client-1, …")
    join: Count | None = Field(default=None, description="So many new clients join the run.")
    leave: list[Name] | None = Field(default=None, description="Clients that are removed, and not forgotten.")

    method: str = Field(default="auto", description="erase: `auto` or a method's name.")
    guarantee: Literal["exact", "approximate"] = "exact"
    params: dict[str, JsonValue] = Field(default_factory=dict, description="erase: of the method.")
    samples: dict[Name, list[int]] = Field(
        default_factory=dict, description="erase: forget only these samples of each named client."
    )
    recovery_rounds: Annotated[int, Field(ge=0, le=10_000)] | None = None
    fallback: Literal["retrain"] | None = None
    audit: AuditPlan | None = None

    @model_validator(mode="after")
    def _one_moment_one_action(self) -> Event:
        for names in (("at_s", "after_round", "when"), ("erase", "join", "leave")):
            if sum(getattr(self, name) is not None for name in names) != 1:
                raise ValueError(f"give exactly one of {', '.join(names)}")
        if self.erase is not None:
            try:
                self.request()
            except ValidationError as error:
                raise ValueError(describe(error.errors()[0], ErasureCreate)) from error
        return self

    def request(self) -> ErasureCreate:
        """What an erasure asks for."""
        return ErasureCreate(
            subjects=self.erase or [],
            scope="samples" if self.samples else "client",
            samples=self.samples,
            method=self.method,
            params=self.params,
            guarantee=self.guarantee,
            recovery_rounds=self.recovery_rounds,
            fallback=self.fallback,
            audit=self.audit,
        )


class Stop(Message):
    """When the simulation ends early. Without it: when the run, the script and all erasures are done."""

    virtual_s: VirtualSeconds | None = None
    accuracy: Annotated[float, Field(ge=0, le=1)] | None = Field(
        default=None, description="When the served accuracy reaches this after the last event of the script."
    )
    loss: Annotated[float, Field(ge=0)] | None = Field(
        default=None, description="When the served loss falls to this after the last event of the script."
    )
    of: Literal["best", "mean", "worst"] = Field(
        default="best", description="accuracy and loss: over the run's top-level lines."
    )

    def why(self, accuracies: Sequence[float], losses: Sequence[float]) -> str | None:
        """Why these, of what the lines serve, are good enough to end; None when they are not."""
        if self.accuracy is not None and accuracies:
            accuracy = _SERVED[self.of](accuracies)
            if accuracy >= self.accuracy:
                return f"served accuracy {accuracy:.4f} reached stop.accuracy {self.accuracy:g}"
        if self.loss is not None and losses:
            loss = -_SERVED[self.of]([-loss for loss in losses])  # the best is the lowest
            if loss <= self.loss:
                return f"served loss {loss:.4f} fell to stop.loss {self.loss:g}"
        return None


class Scenario(Message):
    name: Name = "simulation"
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    run: RunSpec
    """The run as in a run file. `name`, `seed` and `validation.data` come from the scenario."""
    task: str | None = Field(
        default=None,
        examples=["my_task.py:MyTask"],
        description="A task of one's own, as for a worker's `--task`. Each client's is given `data.source` with "
        "`{number}` (from 0) and `{clients}` filled in.",
    )
    data: Data
    clients: Annotated[int, Field(ge=1, le=1_000_000)] = Field(description="How many there are at first.")
    durations: Duration = Field(default=Fixed(), description="How long a client takes for a task.")
    training: Training = Training()
    processes: Annotated[int, Field(ge=1, le=64)] = Field(default=1, description="How many train at a time.")
    script: list[Event] = []
    stop: Stop = Stop()

    @model_validator(mode="before")
    @classmethod
    def _complete_the_run(cls, document: Any) -> Any:
        """The run's name and seed are the scenario's, and models are judged on its test samples."""
        if not isinstance(document, dict) or not isinstance(document.get("run"), dict):
            return document
        run = dict(document["run"])
        for key in ("name", "seed"):
            if key in document:
                run.setdefault(key, document[key])
        run.setdefault("name", "simulation")
        run.setdefault("lease_s", LONG_LEASE_S)
        is_custom = isinstance(model := run.get("model"), dict) and model.get("name") == CUSTOM
        if is_custom:  # only the clients know it: they judge it, and its first weights are drawn there
            run.setdefault("init", PLACEHOLDER)
        elif document.get("task") is None and isinstance(validation := run.get("validation", {}), dict):
            run["validation"] = {"data": PLACEHOLDER, **validation}
        return {**document, "run": run}

    @model_validator(mode="after")
    def _everybody_is_there(self) -> Scenario:
        known = set(self.names)
        named = {f"script.{n}": {*(e.erase or ()), *(e.leave or ()), *e.samples} for n, e in enumerate(self.script)}
        for place, names in {"data.spoilt": set(self.data.spoilt), **named}.items():
            if unknown := sorted(names - known):
                there = f"client-0 to client-{len(known) - 1}"
                raise ValueError(f"{place}: there is no {', '.join(unknown)}; there are {there}")
        if self.task is None and self.run.model.name == CUSTOM:
            raise ValueError("run.model: custom is a task's of one's own; name it: task: my_task.py:MyTask")
        if self.task is not None and (given := sorted(self.data.model_fields_set - {"source"})):
            raise ValueError(f"data.{given[0]}: with a task of one's own, only data.source is used")
        if self.run.clients is not None:
            raise ValueError("run.clients: give the number of clients as `clients` of the scenario")
        return self

    @property
    def names(self) -> list[str]:
        """The names of everybody who ever takes part; newcomers have the highest numbers."""
        return [client_name(number) for number in range(self.clients + sum(e.join or 0 for e in self.script))]


def client_name(number: int) -> str:
    return f"client-{number}"


class ScenarioUnusable(CommandFailed):
    def __init__(self, path: Path | str, faults: list[str]) -> None:
        lines = [f"{path} is not a scenario:", *(f"       {fault}" for fault in faults)]
        super().__init__("\n".join(lines), next_step="docs/simulation.md lists every key", exit_code=UNUSABLE)


def read(path: Path, instead: Mapping[str, Any] | None = None) -> Scenario:
    """`instead`: top-level keys that take the place of the file's. Raises CommandFailed, which says what is allowed."""
    try:
        document = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed(f"cannot read {path}: {error}", exit_code=UNUSABLE) from error
    except yaml.YAMLError as error:
        raise ScenarioUnusable(path, [f"not YAML: {error}"]) from error
    return parse({**document, **(instead or {})} if isinstance(document, dict) else document, path)


def parse(document: Any, path: Path | str = "the scenario") -> Scenario:
    if not isinstance(document, dict):
        raise ScenarioUnusable(path, [f"found {type(document).__name__}; a mapping with `run` and `data` is needed"])
    try:
        scenario = Scenario.model_validate(document)
        validate_model(scenario.run.model)
    except ValidationError as error:
        raise ScenarioUnusable(path, [describe(fault, Scenario) for fault in error.errors()]) from error
    except Rejected as error:
        raise ScenarioUnusable(path, [f"run.model: {error.detail}"]) from error
    return scenario
