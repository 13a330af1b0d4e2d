"""Parameters of Imba-ULRc."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from services.recovery.task import RecoveryTask
from services.wire.message import Message

Neighbours = Annotated[int, Field(ge=1, le=1000)]


class ImbaUlrc(Message):
    skewed_class: Annotated[int, Field(ge=0, le=1_000_000)] | None = Field(
        default=None,
        description="The class to recover; when absent, the server finds the one whose accuracy fell most on its own "
        "validation set.",
    )
    oversample: bool = Field(default=True, description="False: no sample is made (RT in the paper).")
    denoise: bool = Field(default=True, description="False: every sample that is made is kept (RT+SMOTE).")
    neighbours: Neighbours = Field(default=5, description="Of a sample in latent space, for SMOTE.")
    density_neighbours: Neighbours = Field(default=5, description="k: of a sample in input space, for its density.")
    encoder_epochs: Annotated[int, Field(ge=1, le=10_000)] = 200
    encoder_learning_rate: Annotated[float, Field(gt=0, le=10)] = 1e-3
    latent_size: Annotated[int, Field(ge=1, le=4096)] = 32
    permutation: Literal["matched", "mismatched"] = Field(
        default="matched",
        description="What the decoder's output for permuted codes is compared with: the samples in the same order, or "
        "in the opposite one, as the paper's eq. (3) has it, which blurs.",
    )
    local_epochs: Annotated[int, Field(ge=1, le=10_000)] | None = Field(
        default=None, description="Of each round; when absent, as many as the run has (the paper: 2)."
    )


class OversampledTraining(ImbaUlrc, RecoveryTask):
    """Make samples of the class, once for all rounds, and train on them and on the client's own."""

    kind: Literal["oversampled_training"] = "oversampled_training"
    skewed_class: Annotated[int, Field(ge=0, le=1_000_000)]
