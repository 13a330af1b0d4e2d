"""Parameters of the topologies: which cohorts a run is a family of."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from services.wire.message import Message, Name

Merge = Literal["weighted_average", "best", "ensemble"]
Probability = Annotated[float, Field(ge=0, le=1)]


class Flat(Message):
    """One cohort: everybody."""

    kind: Literal["flat"] = "flat"


class Tree(Message):
    """An influence tree (MMT): root, sub-federations, one leaf per client; all train in lock-step."""

    kind: Literal["tree"]
    shape: Literal["huffman", "shannon_fano", "balanced", "n_ary", "by_expiry"] = "huffman"
    branching: Annotated[int, Field(ge=2, le=1000)] = Field(default=2, description="For n_ary: children of a node.")
    probabilities: dict[Name, Probability] = Field(
        default_factory=dict, description="How likely each client is to leave; equal for those not named."
    )
    expiry: dict[Name, float] = Field(
        default_factory=dict,
        description="For by_expiry: when each client leaves, in any unit; never for those not named.",
    )


class BiModel(Message):
    """One global model and one local model per client (BMT)."""

    kind: Literal["bi_model"]


class Isolated(Message):
    """One model per client, an ensemble for inference (SISA)."""

    kind: Literal["isolated"]
    merge: Merge = "ensemble"


class Clusters(Message):
    """A partition of the clients; each cluster trains by itself and the models are merged at the end."""

    kind: Literal["clusters"]
    num_clusters: Annotated[int, Field(ge=1, le=10_000)]
    assignment: Literal["knot", "random", "spectral"] = "knot"
    anchors: Literal["linear", "paper", "quantile"] = "linear"
    min_size: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        default=None, description="c2; K // 2N when absent."
    )
    max_size: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        default=None, description="c3; K / 2 rounded up when absent."
    )
    max_memberships: Annotated[int, Field(ge=1, le=1000)] = Field(default=1, description="c1: clusters per client.")
    inside: Flat | Tree = Field(default=Flat(), discriminator="kind", description="How each cluster is built.")
    merge: Merge = "weighted_average"

    @model_validator(mode="after")
    def _one_tree_per_client(self) -> Clusters:
        if self.max_memberships > 1 and self.inside.kind == "tree":
            raise ValueError("inside: tree needs max_memberships 1")
        return self


Topology = Annotated[Flat | Clusters | Tree | BiModel | Isolated, Field(discriminator="kind")]
