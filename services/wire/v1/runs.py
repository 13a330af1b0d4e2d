"""What to train: the specification of a run, as posted to `/v1/runs` and as written in a run file."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from services.history.spec import History
from services.methods.catalogue import TRAINING
from services.topology.spec import Clusters, Flat, Topology
from services.training.algorithm_spec import AlgorithmSpec
from services.training.fedavg.spec import FedAvg
from services.training.local_spec import LocalTraining
from services.wire.message import Digest, Message, Name

if TYPE_CHECKING:
    Training = AlgorithmSpec
else:
    _SPECS = reduce(or_, (method.spec for method in TRAINING.values()))
    Training = Annotated[_SPECS, Field(discriminator="algorithm")]


class ModelSpec(Message):
    """A built-in model by name, or `custom`: the worker's own task brings the architecture, and `init` its weights."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9_]{1,40}$")] = Field(examples=["mlp", "lenet5", "cnn", "custom"])
    params: dict[str, Any] = Field(default_factory=dict, examples=[{"input_shape": [8, 8], "num_classes": 10}])


class Validation(Message):
    """How each new model is judged: on a set held by the coordinator, by the clients on their own data, or both."""

    data: Digest | None = Field(
        default=None, description="A safetensors blob with tensors `x` and `y`, uploaded beforehand."
    )
    at_clients: bool = Field(default=False, description="Ask the clients to evaluate on their held-out data.")
    every: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        default=1, description="Judge every n-th round (and the last)."
    )
    parts: bool = Field(
        default=True,
        description="Judge the parts of a tree and the clients' own models of a bi-model, too; nobody is served these.",
    )


class StopRule(Message):
    """The run ends after `rounds`, or earlier once accuracy is high and steady."""

    rounds: Annotated[int, Field(ge=1, le=1_000_000)] = 10
    accuracy: Annotated[float, Field(ge=0, le=1)] | None = Field(
        default=None, description="Stop when validation accuracy reaches this."
    )
    window: Annotated[int, Field(ge=2, le=1000)] = Field(
        default=3, description="With max_std: over how many judgements the spread is taken."
    )
    max_std: Annotated[float, Field(ge=0, le=1)] | None = Field(
        default=None, description="With accuracy: also wait until the standard deviation is at most this."
    )


class Retention(Message):
    """Which client updates stay stored after the round that used them (all are needed to replay or calibrate)."""

    updates: Literal["all", "none"] | Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        default="all", description="`all`, `none`, or the number of most recent rounds to keep."
    )


class RunSpec(Message):
    name: Name
    model: ModelSpec
    init: Digest | None = Field(
        default=None, description="Start from this uploaded model instead of a seeded random one."
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    clients: Annotated[list[Name], Field(min_length=1, max_length=1_000_000)] | None = Field(
        default=None, description="Who takes part; every enrolled client when absent."
    )
    topology: Topology = Flat()
    training: Training = FedAvg()
    local: LocalTraining = LocalTraining()
    selection: Literal["uniform", "round_robin"] = "uniform"
    validation: Validation = Validation()
    stop: StopRule = StopRule()
    retention: Retention = Retention()
    history: History = History()
    lease_s: Annotated[float, Field(ge=0.5, le=86400)] = Field(
        default=60.0, description="How long a claimed task stays with a silent worker before it is handed out again."
    )
    max_attempts: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=5, description="How often a client may report a failure of the same task before it counts as failed."
    )

    @model_validator(mode="after")
    def _parts_fit_together(self) -> RunSpec:
        judged = self.validation.data is not None or self.validation.at_clients
        if self.stop.accuracy is not None and not judged:
            raise ValueError("stop.accuracy needs validation.data or validation.at_clients")
        if self.stop.accuracy is not None and not self.validation.parts:
            raise ValueError("stop.accuracy is looked at in every cohort: it needs validation.parts")
        if self.stop.max_std is not None and self.stop.accuracy is None:
            raise ValueError("stop.max_std needs stop.accuracy")
        if self.model.name == "custom" and self.init is None:
            raise ValueError("model custom needs init: the digest of uploaded initial weights")
        if self.model.name == "custom" and self.validation.data is not None:
            raise ValueError("model custom is known to the workers only: use validation.at_clients")
        lockstep = self.topology.kind in ("tree", "bi_model")
        if isinstance(self.topology, Clusters) and self.topology.inside.kind == "tree":
            lockstep = True
        method = TRAINING[self.training.algorithm]
        if lockstep and not method.in_lockstep:
            able = " or ".join(name for name, one in TRAINING.items() if one.in_lockstep)
            raise ValueError(f"topologies tree and bi_model train in lock-step: training.algorithm must be {able}")
        if method.draws_uniformly and self.selection != "uniform":
            raise ValueError(f"training.algorithm {method.name} draws its clients by lot: selection must be uniform")
        if method.walks_its_history and self.retention.updates != "all":
            raise ValueError(
                f"training.algorithm {method.name} computes old rounds again: retention.updates must be all"
            )
        if self.clients is not None and len(set(self.clients)) != len(self.clients):
            raise ValueError("clients lists a name twice")
        return self
