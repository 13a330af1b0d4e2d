"""Server decisions of federated averaging: w += lr * sum_k n_k delta_k / sum_k n_k over the clients that answered."""

from __future__ import annotations

from dataclasses import dataclass

from services.program.contract import AskClients, CohortView, UpdateRef
from services.training.fedavg.spec import FedAvg


@dataclass(frozen=True, slots=True)
class Averaging:
    spec: FedAvg
    quantum: None = None

    @property
    def scale(self) -> float:
        return self.spec.server_learning_rate

    def ask(self, view: CohortView, round: int, model: str) -> AskClients:
        num_clients = min(self.spec.clients_per_round or view.num_members, view.num_members)
        quorum = min(self.spec.quorum or num_clients, num_clients)
        return AskClients("train", round, model, num_clients, quorum, self.spec.deadline_s)

    def weigh(self, update: UpdateRef, round: int) -> tuple[float, int]:
        return float(update.num_samples), 0
