"""What a batch of messages names, by what has to be loaded around it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import UUID

from coordinator.engine import messages as m

MAX_NAMED = 500
"""Up to so many clients of a new run are looked up by name; beyond, the whole federation is read."""


@dataclass(slots=True)
class Needs:
    """The ids that a batch of messages names, by what has to be loaded around them."""

    runs: set[UUID] = field(default_factory=set)
    """Locked, with all their cohorts, open work and awaited rounds."""
    programs: set[UUID] = field(default_factory=set)
    """Cohorts whose program may take a step: members, open tasks, buffered updates."""
    erasures: set[UUID] = field(default_factory=set)
    fences: set[UUID] = field(default_factory=set)
    """Erasures whose subjects' runs are needed whole."""
    reviews: set[UUID] = field(default_factory=set)
    """Erasures whose lines and their runs' cohorts are needed."""
    announced: set[UUID] = field(default_factory=set)
    """Erasures whose deliveries are numbered on."""
    deliveries: set[UUID] = field(default_factory=set)
    merging: set[UUID] = field(default_factory=set)
    """Runs whose merged model may have to be made: members, their samples, heads."""
    resuming: set[UUID] = field(default_factory=set)
    """Runs whose updates that wait in a buffer are needed."""
    whole: set[UUID] = field(default_factory=set)
    """Runs whose lineage and membership are needed completely; found while loading."""
    begun: set[UUID] = field(default_factory=set)
    """Requests whose clients may be told which samples to leave out."""
    leavers: set[tuple[UUID, str]] = field(default_factory=set)
    """(federation, client name) whose runs are needed whole, to see what an erasure would do."""
    all_stay: bool = True
    """Whether only samples are forgotten: then whoever has them goes on training."""
    filings: set[UUID] = field(default_factory=set)
    """Federations whose open requests a new one has to reckon with."""
    tasks: set[UUID] = field(default_factory=set)
    submitted: set[UUID] = field(default_factory=set)
    """Tasks whose model is compared with what was uploaded for them."""
    rounds: set[UUID] = field(default_factory=set)
    recalled: set[UUID] = field(default_factory=set)
    """Models whose updates an erasure's method looks up."""
    jobs: set[UUID] = field(default_factory=set)
    claimants: set[UUID] = field(default_factory=set)
    claimed_runs: set[UUID | None] = field(default_factory=set)
    """Runs that they claim from; None stands for all."""
    acknowledging: set[UUID] = field(default_factory=set)
    """Clients with all the samples that they must leave out."""
    restarting: set[UUID] = field(default_factory=set)
    opening: set[UUID] = field(default_factory=set)
    """Clients whose own rows change, and nothing else."""
    leaving: set[UUID] = field(default_factory=set)
    clients: set[UUID] = field(default_factory=set)
    mentioned: set[tuple[UUID, str]] = field(default_factory=set)
    """(federation, client name) of those a new run is formed from, when it names few."""
    joining: set[tuple[UUID, str]] = field(default_factory=set)
    """(federation, client name) of those who join a run; it matters whether a request is about to forget them."""
    measured: set[UUID] = field(default_factory=set)
    """Cohorts of newcomers whose client is needed."""
    federations: set[UUID] = field(default_factory=set)
    """Federations whose clients a new run is formed from."""
    models: set[str] = field(default_factory=set)
    """Digests: every checkpoint with these bytes is needed."""
    blobs: set[UUID] = field(default_factory=set)
    """Blobs that are about to be recorded."""
    uploads: set[tuple[UUID, str]] = field(default_factory=set)
    """(task, digest) of what is submitted."""
    named: set[tuple[UUID, str]] = field(default_factory=set)
    """(federation, digest) of what is used by its name, or must not be: every blob with these bytes, and
    whether an erasure superseded a model with them."""
    superseded: set[tuple[UUID, str]] = field(default_factory=set)
    """(federation, digest): only whether an erasure superseded a model with these bytes."""


def needs_of(messages: Iterable[m.Message]) -> Needs:
    needs = Needs()
    for message in messages:
        match message:
            case m.CreateRun(run_id=run_id, federation_id=federation_id, spec=spec):
                needs.runs.add(run_id)
                if spec.clients is not None and len(spec.clients) <= MAX_NAMED:
                    needs.mentioned |= {(federation_id, name) for name in spec.clients}
                else:
                    needs.federations.add(federation_id)
                needs.named |= {(federation_id, d) for d in (spec.init, spec.validation.data) if d is not None}
                if spec.init is not None:
                    needs.models.add(spec.init)
            case m.JoinRun(run_id=run_id, federation_id=federation_id, clients=clients):
                needs.runs.add(run_id)
                needs.merging.add(run_id)
                needs.joining |= {(federation_id, name) for name in clients}
            case m.PlaceNewcomer(run_id=run_id, cohort_id=cohort_id, job_id=job_id):
                needs.runs.add(run_id)
                needs.merging.add(run_id)
                needs.measured.add(cohort_id)
                needs.jobs.add(job_id)
            case m.PauseRun() | m.CancelRun():
                needs.runs.add(message.run_id)
            case m.ResumeRun(run_id=run_id):
                needs.runs.add(run_id)
                needs.resuming.add(run_id)
            case m.SettleRun(run_id=run_id, job_id=job_id):
                needs.runs.add(run_id)
                needs.merging.add(run_id)
                needs.jobs.add(job_id)
            case m.RemoveClient(client_id=client_id):
                needs.leaving.add(client_id)
            case m.FileErasure(erasure_id=erasure_id, federation_id=federation_id, subjects=subjects):
                needs.erasures.add(erasure_id)
                needs.leavers |= {(federation_id, name) for name in subjects}
                needs.filings.add(federation_id)
                needs.all_stay &= message.scope == "samples"
            case m.DenyErasure() | m.CancelErasure():
                needs.erasures.add(message.erasure_id)
            case m.ApproveErasure(erasure_id=erasure_id):
                needs.erasures.add(erasure_id)
                needs.begun.add(erasure_id)
            case m.RetryErasure(erasure_id=erasure_id):
                needs.erasures.add(erasure_id)
                needs.reviews.add(erasure_id)
                needs.begun.add(erasure_id)
            case m.FenceErasure(erasure_id=erasure_id, job_id=job_id):
                needs.erasures.add(erasure_id)
                needs.fences.add(erasure_id)
                needs.jobs.add(job_id)
            case m.ReviewErasure(erasure_id=erasure_id):
                needs.erasures.add(erasure_id)
                needs.reviews.add(erasure_id)
            case (
                m.CompleteErasure(erasure_id=erasure_id, job_id=settled)
                | m.HoldErasure(erasure_id=erasure_id, job_id=settled)
            ):
                needs.erasures.add(erasure_id)
                needs.jobs |= {settled} if settled is not None else set()
            case m.AnnounceErasure(erasure_id=erasure_id):
                needs.erasures.add(erasure_id)
                needs.announced.add(erasure_id)
            case m.SettleDelivery(delivery_id=delivery_id, job_id=job_id):
                needs.deliveries.add(delivery_id)
                needs.jobs.add(job_id)
            case m.OpenRounds(run_id=run_id):
                needs.runs.add(run_id)
            case m.OpenSession(client_id=client_id, frees_tasks=frees_tasks):
                (needs.restarting if frees_tasks else needs.opening).add(client_id)
            case m.AcknowledgeExclusions(client_id=client_id):
                needs.acknowledging.add(client_id)
            case m.ClaimTasks(client_id=client_id):
                needs.claimants.add(client_id)
                needs.claimed_runs.add(message.run_id)
            case m.RenewLease() | m.FailTask():
                needs.tasks.add(message.task_id)
                needs.clients.add(message.client_id)
            case m.SubmitResult(task_id=task_id, client_id=client_id, digest=digest):
                needs.tasks.add(task_id)
                needs.submitted.add(task_id)
                needs.clients.add(client_id)
                if digest is not None:
                    needs.uploads.add((task_id, digest))
            case m.RecordBlob(blob_id=blob_id, federation_id=federation_id, digest=digest, client_id=sender_id):
                needs.blobs.add(blob_id)
                (needs.named if sender_id is None else needs.superseded).add((federation_id, digest))
                needs.clients |= {sender_id} if sender_id is not None else set()
            case m.LeaseRanOut(task_id=task_id):
                needs.tasks.add(task_id)
            case m.DeadlinePassed(round_id=round_id):
                needs.rounds.add(round_id)
            case m.StartProgram(cohort_id=cohort_id):
                needs.programs.add(cohort_id)
            case m.RecallRound(cohort_id=cohort_id, checkpoint_id=checkpoint_id):
                needs.programs.add(cohort_id)
                if checkpoint_id is not None:
                    needs.recalled.add(checkpoint_id)
            case m.CollectRound(round_id=round_id):
                needs.rounds.add(round_id)
            case m.JobDone(job_id=job_id, blob=blob):
                needs.jobs.add(job_id)
                if blob is not None:
                    needs.blobs.add(blob.blob_id)
            case m.JobFailed(job_id=job_id):
                needs.jobs.add(job_id)
    return needs


def steps_program(message: m.Message) -> bool:
    return isinstance(message, m.StartProgram | m.RecallRound | m.CollectRound | m.JobDone | m.OpenRounds)
