"""What a period was decided from, as a coordinator shows it, and whether it comes out again."""

from __future__ import annotations

from dataclasses import dataclass

from services.incentive.division import Candidate, Division, Job, divide
from services.incentive.spec import Incentives, Strategy
from services.wire.v1.incentives import Period


@dataclass(frozen=True)
class Setting:
    """Everything that a period is decided from."""

    strategy: Strategy
    incentives: Incentives
    jobs: tuple[Job, ...]
    clients: tuple[Candidate, ...]
    number: int = 1

    def divided(self) -> Division:
        return divide(self.strategy, self.jobs, self.clients, self.incentives, self.number)


def setting_of(period: Period) -> Setting:
    return Setting(
        period.strategy,
        period.incentives,
        tuple(Job(job.id, job.name, job.pool) for job in period.jobs),
        tuple(
            Candidate(one.client, tuple(one.jobs), one.samples, one.seconds, one.bytes, one.stored_bytes)
            for one in period.clients
        ),
        period.number,
    )


def comes_out_again(period: Period) -> bool | None:
    """None: figures of clients that were erased since are missing."""
    if period.serves and not period.populations:
        return None
    return dict(setting_of(period).divided().jobs) == period.serves
