"""Server decisions of FATS: each round asks K clients drawn by lot and takes the plain mean of what they did.

Forgetting needs nothing of its own. A leaver that was never drawn is in no model, and the newest one stands; else the
line goes back to the model before its first round, and draws and trains again among the others.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.program.contract import AskClients, CohortView, UpdateRef
from services.training.fats.spec import Fats


@dataclass(frozen=True, slots=True)
class Sampling:
    spec: Fats
    scale: float = 1.0
    quantum: float | None = None

    def ask(self, view: CohortView, round: int, model: str) -> AskClients:
        num_clients = min(self.spec.clients_per_round or 1, view.num_members)
        return AskClients("train", round, model, num_clients, num_clients)

    def weigh(self, update: UpdateRef, round: int) -> tuple[float, int]:
        return 1.0, 0
