"""Messages about runs and who takes part in them, from operators and from the engine itself."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from coordinator.engine.entities import Federation, Hold, Run
from coordinator.engine.erasure.stages import RecoveryWanted
from coordinator.engine.messages.message import Message
from coordinator.engine.needs import MAX_NAMED, Needs
from services.incentive.spec import Incentives, Strategy
from services.wire.v1.runs import RunSpec, policy_of


@dataclass(frozen=True, slots=True)
class CreateRun(Message[Run]):
    run_id: UUID
    federation_id: UUID
    spec: RunSpec

    def add_needs(self, needs: Needs) -> None:
        needs.runs.add(self.run_id)
        if self.spec.clients is not None and len(self.spec.clients) <= MAX_NAMED:
            needs.mentioned.update((self.federation_id, name) for name in self.spec.clients)
        else:
            needs.federations.add(self.federation_id)
        named = (self.spec.init, self.spec.validation.data, *policy_of(self.spec.selection).blobs().values())
        needs.named.update((self.federation_id, digest) for digest in named if digest is not None)
        if self.spec.init is not None:
            needs.models.add(self.spec.init)
        needs.allocating.add(self.federation_id)


@dataclass(frozen=True, slots=True)
class PauseRun(Message[Run]):
    run_id: UUID
    hold: Hold
    reason: str
    expected_version: int | None = None

    def add_needs(self, needs: Needs) -> None:
        needs.runs.add(self.run_id)


@dataclass(frozen=True, slots=True)
class ResumeRun(Message[Run]):
    run_id: UUID
    expected_version: int | None = None

    def add_needs(self, needs: Needs) -> None:
        needs.runs.add(self.run_id)
        needs.resuming.add(self.run_id)


@dataclass(frozen=True, slots=True)
class CancelRun(Message[Run]):
    run_id: UUID
    reason: str
    expected_version: int | None = None

    def add_needs(self, needs: Needs) -> None:
        needs.runs.add(self.run_id)


@dataclass(frozen=True, slots=True)
class RecoverRun(Message[Run]):
    """Somebody wants the next rounds of a run to be those of a recovery, without an erasure."""

    run_id: UUID
    recovery: RecoveryWanted
    num_rounds: int | None = None
    compared_with: str | None = None
    """Digest of the run's own model that the class which lost most is found by comparing with."""
    expected_version: int | None = None

    def add_needs(self, needs: Needs) -> None:
        needs.runs.add(self.run_id)


@dataclass(frozen=True, slots=True)
class JoinRun(Message[Run]):
    run_id: UUID
    federation_id: UUID
    clients: tuple[str, ...]

    def add_needs(self, needs: Needs) -> None:
        needs.merging.add(self.run_id)
        needs.joining.update((self.federation_id, name) for name in self.clients)
        needs.allocating.add(self.federation_id)


@dataclass(frozen=True, slots=True)
class PlaceNewcomer(Message[None]):
    """A newcomer is measured and can join a cluster."""

    run_id: UUID
    cohort_id: UUID
    job_id: UUID | None = None
    """The job that it was posted with, which is over then."""

    def add_needs(self, needs: Needs) -> None:
        needs.merging.add(self.run_id)
        needs.measured.add(self.cohort_id)
        needs.allocating.add(self.run_id)
        needs.jobs.update(() if self.job_id is None else (self.job_id,))


@dataclass(frozen=True, slots=True)
class StopRun(Message[None]):
    """A line of the run meets its stop rule: if the best of them does, all stop."""

    run_id: UUID
    cohort_id: UUID
    reason: str
    job_id: UUID | None = None
    """The job that it was posted with, and that the line waits for."""

    def add_needs(self, needs: Needs) -> None:
        needs.runs.add(self.run_id)
        needs.resuming.add(self.run_id)
        needs.programs.add(self.cohort_id)
        needs.jobs.update(() if self.job_id is None else (self.job_id,))
        needs.steps_program = True


@dataclass(frozen=True, slots=True)
class SettleRun(Message[None]):
    """A cohort of the run has ended, so that the run may have."""

    run_id: UUID
    job_id: UUID | None = None
    """The job that it was posted with, which is over then."""

    def add_needs(self, needs: Needs) -> None:
        needs.merging.add(self.run_id)
        needs.jobs.update(() if self.job_id is None else (self.job_id,))


@dataclass(frozen=True, slots=True)
class ChangeAllocation(Message[Federation]):
    """From now on the federation divides its clients among jobs in this way, or not at all."""

    federation_id: UUID
    allocation: Strategy | None
    incentives: Incentives

    def add_needs(self, needs: Needs) -> None:
        needs.governed.add(self.federation_id)


@dataclass(frozen=True, slots=True)
class RemoveClient(Message[None]):
    client_id: UUID

    def add_needs(self, needs: Needs) -> None:
        needs.leaving.add(self.client_id)
