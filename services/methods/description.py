"""What a method says of itself, in its own folder: parameters, promises, needs, and where its code is.

Wire, engine, planner, worker, discovery, certificate, benchmarks and the purge derive from descriptions. A family of
methods is a class; what the engine must know of a method is a field of it, so that the engine knows no method by name.
A description imports the method's parameters and nothing else: all code is named by reference.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

from services.methods.references import Reference, is_reference
from services.selection.spec import SelectionSpec
from services.training.algorithm_spec import AlgorithmSpec
from services.wire.message import Message

NAME = re.compile(r"[a-z0-9_-]{1,40}")


class TaskParameters(Message):
    """What a client needs to know for a kind of task beyond the model. It has a field `kind`, that of the task."""

    def blobs(self) -> tuple[str, ...]:
        """Digests of models that the task needs besides its own."""
        return ()


@dataclass(frozen=True, slots=True)
class ClientWork:
    """A kind of task: the function that a worker calls with a `TaskInHand` (services/program/client.py)."""

    handler: Reference
    parameters: type[TaskParameters] | None = None
    returns_update: bool = True
    """Whether it changes the model; otherwise its result is figures alone."""


@dataclass(frozen=True, kw_only=True)
class Description:
    """What methods of all families have. The name is the one that requests, runs and certificates use."""

    family: ClassVar[str]
    name: str
    summary: str
    spec: type[Message] = Message
    """The parameters; none unless told otherwise."""
    program: Reference | None = None
    """The server's part: a class that fulfils `services.program.contract.Program`."""
    kernels: Mapping[str, Reference] = field(default_factory=dict)
    noisy_kernels: tuple[str, ...] = ()
    """Kernels that draw noise from a seed among their parameters. Whoever knew it could take the noise off again, so
    the purge drops what they were told."""
    client_work: Mapping[str, ClientWork] = field(default_factory=dict)
    """The clients' part: what a worker does for each kind of task that only this method asks for."""

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ValueError(f"{self.name!r} cannot be the name of a method: a-z, 0-9, _ and -, at most 40")
        if wrong := [text for text in self.references if not is_reference(text)]:
            raise ValueError(f"{self.name} refers to {wrong[0]!r}, which is not of the form module:name")
        if missing := set(self.noisy_kernels) - self.kernels.keys():
            raise ValueError(f"{self.name} calls kernels noisy that it does not have: {', '.join(sorted(missing))}")
        for kind, work in self.client_work.items():
            if work.parameters is not None:
                _check_tag(work.parameters, TaskParameters, "kind", kind)

    @property
    def references(self) -> list[Reference]:
        own = [] if self.program is None else [self.program]
        return [*own, *self.kernels.values(), *(work.handler for work in self.client_work.values())]


@dataclass(frozen=True, kw_only=True)
class Training(Description):
    """How a cohort's models are trained. Its parameters are those of the run's `training`."""

    family = "training"
    spec: type[AlgorithmSpec]
    algorithm: Reference
    """A class that fulfils `services.training.rounds.Algorithm`, made of the parameters."""
    program: Reference = "services.training.rounds:RoundsProgram"
    in_lockstep: bool = False
    """Can train the cohorts of a tree, whose rounds wait for each other."""
    draws_uniformly: bool = False
    """Rests on clients that are drawn by lot."""
    walks_its_history: bool = False
    """Computes old rounds again after a fence, and so needs the updates of all of them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_tag(self.spec, AlgorithmSpec, "algorithm", self.name)

    @property
    def references(self) -> list[Reference]:
        return [*super().references, self.algorithm]


@dataclass(frozen=True, kw_only=True)
class Selection(Description):
    """Who takes part in a round. A policy either draws from the members' names, or has a kernel that knows clients by
    what they sent; that one has a state, which is a blob of its cohort, and a fence drops it."""

    family = "selection"
    spec: type[SelectionSpec]
    draw: Reference | None = None
    """A pure function of the candidates' names, how many to draw, a seed and the number of the round."""
    order: str | None = None
    """The kernel that puts all members in order, the best first (services/selection/question.py says what it is
    asked). Before the first order every member trains one epoch, which is its profile."""
    observes: bool = False
    """Whether the kernel also reads what clients sent in their last round, and the accuracy of what was made of it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_tag(self.spec, SelectionSpec, "policy", self.name)
        if (self.draw is None) == (self.order is None):
            raise ValueError(f"{self.name} must either draw from names or have a kernel that orders them")
        if self.order is not None and self.order not in self.kernels:
            raise ValueError(f"{self.name} orders clients by a kernel that it does not have: {self.order}")

    @property
    def references(self) -> list[Reference]:
        return [*super().references, *([] if self.draw is None else [self.draw])]


@dataclass(frozen=True, kw_only=True)
class Unlearning(Description):
    """How a cohort forgets. An exact method is one of the engine's two cuts: to the newest model without the client,
    or to the models of sub-cohorts without it. An approximate one mends the model by a program of its own."""

    family = "unlearning"
    guarantee: Literal["exact", "approximate"]
    granularity: Literal["client", "samples"] = "client"
    """The smallest thing it can forget."""
    work_per_update: float = 1.0
    """Time that a client needs for an update of the recovery, against one of the run itself."""
    recovery_rounds: int = 0
    """Rounds of ordinary training after it when the request does not say, at most as many as the cohort had."""
    local_training: Reference | None = None
    """How clients train until the round of the fence is reached again: a pure function of the run's own local training,
    the method's parameters and the number of the round, counted from the cut."""
    objection: Reference | None = None
    """Why it cannot forget what is asked for: a pure function of the request's parameters and the run's `ModelSpec`
    that gives a reason, or None. Without one, it mends every model."""
    needs_sub_cohorts: bool = False
    """Restarts from cohorts whose members are subsets of the fenced one's: trees and bi-model."""
    needs_leaver: bool = False
    """The leaver's agent does a part of the work, so it must be online and willing."""
    needs_remaining: bool = True
    """Other clients of the cohort have to train, in the method itself or in the recovery that it cannot do without."""
    needs_history: bool = False
    """Reads the update history of the rounds it walks through."""
    stride_parameter: str | None = None
    """The parameter that makes it walk through every n-th round of the history only."""
    needs_residuals: bool = False
    """Reads the running vectors that a run keeps when `history.residuals` is set."""
    needs_distances: bool = False
    """Reads the distance of each update from its round's step, kept when `history.distances` is set."""
    selects: Reference | None = None
    """The selection policy by which its own program asks clients: a pure function of the method's parameters and the
    run's policy; None where it asks nobody, or those that it names."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.guarantee == "approximate") != (self.program is not None):
            raise ValueError(
                f"{self.name} is {self.guarantee}: approximate methods have a program, exact ones have none"
            )

    @property
    def references(self) -> list[Reference]:
        own = [place for place in (self.local_training, self.selects, self.objection) if place is not None]
        return [*super().references, *own]

    @property
    def needs(self) -> list[str]:
        """Its needs in words, as discovery lists them."""
        names = ("sub_cohorts", "leaver", "remaining", "history", "residuals", "distances")
        return [name.replace("_", "-") for name in names if getattr(self, f"needs_{name}")]

    def stride(self, params: Mapping[str, Any]) -> int:
        """Every how many rounds of the history are walked through."""
        return int(params.get(self.stride_parameter, 1)) if self.stride_parameter is not None else 1


@dataclass(frozen=True, kw_only=True)
class Recovery(Description):
    """How a cohort makes up for what an erasure cost it. The rounds are the run's own; what this says is what clients
    do in them: at most one kind of task, which takes the place of `train`. Without one they train as always."""

    family = "recovery"
    recovery_rounds: int = 0
    """How many rounds the recovery trains when the request does not say; 0: as many as the unlearning method has."""
    work_per_update: float = 1.0
    """Time that a client needs for an update, against one of the run itself."""
    preparation: str | None = None
    """The parameter that says how many epochs a client needs once, before its first update."""
    class_parameter: str | None = None
    """The parameter that names the class to recover; where it is absent, the server finds the class."""
    most_samples: float = 1.0
    """The factor by which the samples that a client trains on may exceed those that it has."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.program is not None or len(self.client_work) > 1:
            raise ValueError(f"{self.name} is a recovery: it has no program, and at most one kind of task")
        for name in filter(None, (self.preparation, self.class_parameter)):
            if name not in self.spec.model_fields:
                raise ValueError(f"{self.name} has no parameter {name}")

    @property
    def task_kind(self) -> str | None:
        return next(iter(self.client_work), None)

    def preparation_epochs(self, params: Mapping[str, Any]) -> int:
        """Epochs that each client needs once."""
        return getattr(self.spec.model_validate(params), self.preparation) if self.preparation is not None else 0


def _check_tag(spec: type[Message], kind: type[Message], tag: str, value: str) -> None:
    """Messages are told apart by a literal: one that has another would make the whole message unreadable."""
    if not issubclass(spec, kind):
        raise ValueError(f"{spec.__name__} must be a {kind.__name__}")
    if tag not in spec.model_fields or get_args(spec.model_fields[tag].annotation) != (value,):
        raise ValueError(f"{spec.__name__} needs the field {tag}: Literal[{value!r}]")
