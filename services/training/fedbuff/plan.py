"""Server decisions of FedBuff: w += lr * sum_i s_i n_i delta_i / sum_i s_i n_i with s_i = (1 + staleness_i)^-p.

Buffer and concurrency are stated for the whole run and scaled to the cohort: M_n = clamp(round(M |cohort| / K), 1,
|cohort|), so that a small cohort can still fill its buffer.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.program.contract import AskClients, CohortView, Stream, UpdateRef
from services.training.fedbuff.spec import FedBuff


def scaled(whole: int, view: CohortView) -> int:
    share = round(whole * view.num_members / max(1, view.num_members_of_run))
    return max(1, min(share, view.num_members))


@dataclass(frozen=True, slots=True)
class Buffering:
    spec: FedBuff
    quantum: None = None

    @property
    def scale(self) -> float:
        return self.spec.server_learning_rate

    def ask(self, view: CohortView, round: int, model: str) -> AskClients:
        buffer = scaled(self.spec.buffer_size, view)
        in_flight = max(scaled(self.spec.concurrency, view), buffer)
        stream = Stream(in_flight=in_flight, buffer=buffer, staleness_bound=self.spec.staleness_bound)
        return AskClients("train", round, model, in_flight, buffer, None, stream)

    def weigh(self, update: UpdateRef, round: int) -> tuple[float, int]:
        staleness = round - 1 - update.base_round
        return update.num_samples * (1.0 + staleness) ** -self.spec.staleness_exponent, staleness
