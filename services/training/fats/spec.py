"""Parameters of FATS."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field

from services.training.algorithm_spec import AlgorithmSpec


class Fats(AlgorithmSpec):
    algorithm: Literal["fats"]
    client_budget: Annotated[float, Field(gt=0, le=1_000_000)] = Field(
        default=0.5, description="rho_C: in how many rounds of the run a client is drawn, on average."
    )
    clients_per_round: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        default=None, description="K; follows from the budget when absent, and stays when clients leave or join."
    )

    def settled(self, num_clients: int, num_rounds: int) -> Self:
        """K = rho_C M / R, at least 1."""
        per_round = self.clients_per_round or max(1, round(self.client_budget * num_clients / num_rounds))
        return self.model_copy(update={"clients_per_round": min(per_round, num_clients)})
