"""Parameters of selection by Q-learning."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from services.selection.spec import ProfiledSpec
from services.wire.message import Digest


class Dqn(ProfiledSpec):
    policy: Literal["dqn"] = "dqn"
    state: Digest | None = Field(
        default=None,
        description="A pre-trained network, made by `lethe selection train` and uploaded beforehand. Without one, or "
        "with one that does not fit, k-center selects until the network has learnt enough.",
    )
    preset: Literal["shared", "paper"] = Field(
        default="shared",
        description="shared: one scorer for each client, which fits any set of clients, and one client from each "
        "k-center group; paper: a network with an output for each client, and the best of all.",
    )
    target_accuracy: Annotated[float, Field(gt=0, le=1)] = Field(
        default=0.9, description="The reward of a round is 64^(accuracy - target) - 1, on the run's validation set."
    )

    def blobs(self) -> dict[str, str]:
        return {} if self.state is None else {"state": self.state}
