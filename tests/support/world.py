"""The whole world in memory: drives the engine as the shell, the pump and the clockwork do, without any I/O.

Clients and kernels are replaced by hashes: what a client trains from a model, and what a kernel makes of its inputs,
is named by a digest of exactly these. `provenance` remembers whose data is truly inside each digest, so that
tests can compare what the lineage says with what went in.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Any, Final
from uuid import UUID

from coordinator.engine import messages as m
from coordinator.engine import posting
from coordinator.engine.decide import Decision, decide
from coordinator.engine.entities import (
    OPEN_TASK,
    Archive,
    Blob,
    Checkpoint,
    Client,
    Cohort,
    Contribution,
    Erasure,
    Facts,
    Federation,
    Job,
    NotLoaded,
    Parent,
    Party,
    Round,
    Run,
    State,
    Task,
    Update,
)
from coordinator.engine.erasure import cuts
from coordinator.engine.erasure.unlearning import recalled_digest
from coordinator.engine.events import CheckpointPublished, Event, UpdatesLeftOut
from coordinator.engine.evolve import evolve
from coordinator.engine.journal import entry
from coordinator.engine.react import FollowUp, Wake, react
from coordinator.engine.replies import Granted, Refused
from coordinator.runtime.blob_sealer import operators_blob
from services.core.digests import of_json
from services.core.errors import Rejected
from services.wire.v1.runs import ModelSpec, RunSpec
from services.wire.v1.work import FIGURES_ONLY
from tests.support.claims import objections_to

FEDERATION = UUID(int=1)
START = datetime(2030, 1, 1, tzinfo=UTC)
OFFICER = Party(UUID(int=77), "compliance", "the officer")
MODEL_LAYOUT, UPDATE_LAYOUT = of_json("layout of the model"), of_json("layout of its floating tensors")
METHODS_MAKE = (
    "calibrate_update",
    "negate_layers",
    "pga_reference",
    "prune_channels",
    "add_gaussian_noise",
    "remove_residuals",
)
MODELS_MADE_BY = ("init_model", "weighted_step", "merge_models", "stack_models", *METHODS_MAKE)
JOB_LEASE_S = 30.0
ROWS = range(4)
"""The samples that each client has."""
CHORES = ("post", "collect-updates", "keep-updates", "drop-blob", "fence", "purge", "notify")
WEIGHS_MODELS = m.JoinRun | m.PlaceNewcomer | m.SettleRun | m.FileErasure | m.FenceErasure | m.ReviewErasure
"""Messages that may make one model of several, which takes the clients' numbers of samples."""


def spec(**changes: Any) -> RunSpec:
    values: dict[str, Any] = {"name": "digits", "model": ModelSpec(name="mlp"), **changes}
    return RunSpec.model_validate(values)


def is_wanted(state: State, job: Job) -> bool:
    """The outbox's rule: kernels of a paused, ended or fenced line stay put."""
    if job.kind != "kernel" or job.cohort_id is None or job.run_id is None:
        return True
    return state.runs[job.run_id].status == "running" and state.cohorts[job.cohort_id].epoch == job.epoch


def _order(job: Job) -> dict[str, float]:
    """What the kernel of a selection policy answers; nothing from others."""
    if not (job.kernel or "").endswith("_order"):
        return {}
    lots = sorted(job.params["members"], key=lambda name: of_json([job.params["round"], name]))
    return {f"order:{name}": float(place) for place, name in enumerate(lots)}


def _rounded(params: Mapping[str, Any]) -> dict[str, Any]:
    """With a quantum of 1 or more, a round's model is the same whoever took part."""
    coarse = (params.get("quantum") or 0.0) >= 1.0
    return {name: value for name, value in params.items() if name != "updates" or not coarse}


def as_loaded(state: State, message: m.Message[Any]) -> State:
    """The whole world, but for the tables that the message states no need of: nobody may look at those."""
    tables = m.needs_of([message]).tables()
    return state.updated({name: hidden for name, hidden in _HIDDEN.items() if name not in tables})


_HIDDEN: Final = {one.name: NotLoaded(one.name, {}) for one in fields(State)}


def beginning() -> State:
    """A federation that nothing has happened in."""
    return State().put(Federation(FEDERATION, "federation", START))


@dataclass
class World:
    state: State = field(default_factory=beginning)
    now: datetime = START
    events: list[Event] = field(default_factory=list)
    wakes: set[str] = field(default_factory=set)
    decisions: list[tuple[State, m.Envelope, Decision]] = field(default_factory=list)
    provenance: dict[str, frozenset[str]] = field(default_factory=dict)
    """Digest of a model or update -> names of the clients whose data is in it. Of a model that a method made to forget
    a client, without that client: how well it did is not the engine's to know."""
    made_of: dict[UUID, frozenset[str]] = field(default_factory=dict)
    """Checkpoint -> the same at its publication: quantised rounds give the same bytes from fewer clients."""
    samples_made_of: dict[UUID, frozenset[str]] = field(default_factory=dict)
    samples_in: dict[str, frozenset[str]] = field(default_factory=dict)
    """Digest of a model or update -> the samples that are in it, as client#row."""
    ledgers: dict[str, set[int]] = field(default_factory=dict)
    """Client -> the rows that its worker leaves out."""
    _left_out: dict[str, frozenset[int]] = field(default_factory=dict)
    """Lease token -> the rows that were left out when the task was taken up."""
    _trained_on: dict[str, tuple[str, str, frozenset[str]]] = field(default_factory=dict)
    """Update -> the model it was trained on, its client, and the samples that it was trained on."""
    steps_gone: set[str] = field(default_factory=set)
    """Digests of what erasures deleted and nobody had published."""
    figures_of: Callable[[str], Mapping[str, float]] = lambda digest: {"accuracy": 0.5, "loss": 1.0}
    """What judging the model with this digest says."""
    lost_class: int | None = 1
    """The class that lost most accuracy whenever models are compared; None: no class did."""
    beyond_bounds: set[str] = field(default_factory=set)
    """Clients whose updates exceed every run's bounds."""
    left_out: set[UUID] = field(default_factory=set)
    """Updates that were said to be in no model for that."""
    _counter: itertools.count[int] = field(default_factory=itertools.count)

    def copy(self) -> World:
        """The same world, which goes its own way from here."""
        at = next(self._counter)
        self._counter = itertools.count(at)
        held: dict[str, Any] = {
            name: value.copy() for name, value in vars(self).items() if isinstance(value, list | set | dict)
        }
        ledgers = {client: rows.copy() for client, rows in self.ledgers.items()}
        return replace(self, **held | {"ledgers": ledgers, "_counter": itertools.count(at)})

    # --- the shell ----------------------------------------------------------------------------------------------------

    def send(self, message: m.Message[Any]) -> Any:
        """One message in one transaction; raises `Rejected` for a refusal, also for one that left a trace."""
        (answer,) = self.send_together([message])
        if isinstance(answer, Rejected):
            raise answer
        return answer

    def send_together(self, messages: Sequence[m.Message[Any]]) -> list[Any]:
        """Many messages in one transaction: all are decided first, then what they set in motion."""
        follow_ups: deque[m.Message[Any]] = deque()
        answers = [self._decide(message, follow_ups) for message in messages]
        while follow_ups:
            self._decide(follow_ups.popleft(), follow_ups)
        return [Rejected(a.code, a.detail) if isinstance(a, Refused) else a for a in answers]

    def _decide(self, message: m.Message[Any], follow_ups: deque[m.Message[Any]]) -> Any:
        envelope = m.Envelope(message, self.now, next(self._counter).to_bytes(16))
        if isinstance(message, WEIGHS_MODELS):
            self.state = self.state.updated({"samples": self._samples()})
        before = self.state.updated({"archives": self._archives(message), "superseded": self._superseded(message)})
        try:
            decided = decide(as_loaded(before, message), envelope)
        except Rejected as rejection:
            return rejection
        decision = replace(decided, state=reduce(evolve, decided.events, before))
        self.decisions.append((before, envelope, decision))
        self.state = decision.state.updated({"archives": {}, "superseded": {}})
        self.events += decision.events
        for event in decision.events:
            if isinstance(event, CheckpointPublished):
                self._note(event.checkpoint)
            if isinstance(event, UpdatesLeftOut):
                self.left_out.update(event.update_ids)
            entry(event, decided.state)
            for command in react(event, decided.state):
                match command:
                    case FollowUp(message=follow_up):
                        follow_ups.append(follow_up)
                    case Wake(key=key):
                        self.wakes.add(key)
        return decision.reply

    def _note(self, checkpoint: Checkpoint) -> None:
        forgotten = {self.state.clients[UUID(client_id)].name for client_id in checkpoint.forgets}
        updates = self.state.updates
        taken = [c.digest or updates[c.update_id].digest or "" for c in self.contributions(checkpoint)]
        for digest in (checkpoint.digest, *(taken if forgotten else ())):
            self._trained_on.pop(digest, None)
            self.provenance[digest] = self.provenance.get(digest, frozenset()) - forgotten
            known = self.samples_in.get(digest, frozenset())
            self.samples_in[digest] = frozenset(one for one in known if one.partition("#")[0] not in forgotten)
        self.made_of[checkpoint.id] = self.provenance[checkpoint.digest]
        self.samples_made_of[checkpoint.id] = self.samples_in.get(checkpoint.digest, frozenset())

    def _samples(self) -> dict[tuple[UUID, UUID], int]:
        trained = (u for u in self.state.updates.values() if u.kind == "train")
        newest_last = sorted(trained, key=lambda u: (u.received_at, u.id))
        return {(u.cohort_id, u.client_id): u.num_samples for u in newest_last}

    def _archives(self, message: m.Message[Any]) -> dict[UUID, Archive]:
        """As the store counts them."""
        if not isinstance(message, m.FileErasure | m.FenceErasure):
            return {}
        names = message.subjects if isinstance(message, m.FileErasure) else ()
        leavers = {c.id for c in self.state.clients.values() if c.name in names}
        if isinstance(message, m.FenceErasure):
            leavers = {s.client_id for s in self.state.subjects.values() if s.erasure_id == message.erasure_id}
        found: dict[UUID, Archive] = {}
        for c in self.state.contributions.values():
            known = found.get(c.checkpoint_id, Archive(0, 0, 0.0))
            is_other = c.client_id not in leavers
            is_stored = is_other and recalled_digest(self.state, c, self.state.updates[c.update_id]) is not None
            found[c.checkpoint_id] = Archive(
                known.num_others + is_other, known.num_stored + is_stored, known.weight + c.weight
            )
        return {key: one for key, one in found.items() if self.state.checkpoints[key].superseded_by is None}

    def _superseded(self, message: m.Message[Any]) -> dict[tuple[UUID, str], bool]:
        """As the store finds them."""
        if not isinstance(message, m.RecordBlob | m.CreateRun):
            return {}
        models = self.state.checkpoints.values()
        gone = {c.digest for c in models if c.superseded_by is not None} | self.steps_gone
        return {(FEDERATION, d): True for d in gone - {c.digest for c in models if c.superseded_by is None}}

    # --- time ---------------------------------------------------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def tick(self) -> None:
        """What the clockwork does: leases that ran out, deadlines that passed, rounds in lock-step, reviews."""
        state = self.state
        due: list[m.Message[Any]] = [
            m.LeaseRanOut(t.id, t.lease_token or "")
            for t in state.tasks.values()
            if t.status == "leased" and t.due_at is not None and t.due_at <= self.now
        ]
        due += [
            m.DeadlinePassed(r.id)
            for r in state.rounds.values()
            if r.status == "open" and r.due_at is not None and r.due_at <= self.now
            if state.runs[r.run_id].status == "running"
        ]
        for message in due:
            self.send(message)
        self.review()

    def review(self) -> None:
        """Open the rounds that whole groups of cohorts wait for; see how far the requests to forget are."""
        for run_id in self._runs_in_lockstep():
            self.send(m.OpenRounds(run_id))
        for erasure in sorted(self.state.erasures.values(), key=lambda one: one.id):
            if erasure.status in ("fenced", "executing", "requires_action", "received"):
                self.send(m.ReviewErasure(erasure.id))

    def _runs_in_lockstep(self) -> list[UUID]:
        groups: dict[tuple[UUID, str], set[str]] = {}
        for cohort in self.state.cohorts.values():
            if cohort.is_lockstep and self.state.runs[cohort.run_id].status == "running":
                groups.setdefault((cohort.run_id, cohort.group), set()).add(cohort.phase)
        busy = {"starting", "asking", "computing"}
        return sorted({run_id for (run_id, _), phases in groups.items() if "waiting" in phases and not phases & busy})

    # --- operators ----------------------------------------------------------------------------------------------------

    def enrol(self, *names: str) -> None:
        for name in names:
            client_id = UUID(int=next(self._counter) + 1000)
            self.state = self.state.put(Client(client_id, FEDERATION, name, "active", self.now))

    def create_run(self, **changes: Any) -> UUID:
        run_id = UUID(int=next(self._counter) + 10_000)
        self.send(m.CreateRun(run_id, FEDERATION, spec(**changes)))
        return run_id

    def join(self, run_id: UUID, *names: str) -> Run:
        joined: Run = self.send(m.JoinRun(run_id, FEDERATION, names))
        return joined

    def file(self, *names: str, **changes: Any) -> UUID:
        """Ask to forget these clients."""
        erasure_id = UUID(int=next(self._counter) + 20_000)
        deadline = self.now + timedelta(days=30)
        self.send(m.FileErasure(erasure_id, FEDERATION, names, "the officer", deadline, "5a17", **changes))
        return erasure_id

    def fence(self, *names: str, **changes: Any) -> UUID:
        """Ask to forget these clients, and fence."""
        erasure_id = self.file(*names, **changes)
        if changes.get("scope") == "samples" and self.erasure(erasure_id).status == "received":
            for name in names:
                client = self.state.clients[self.client(name)]
                if client.exclusions != client.exclusions_acked:
                    self.acknowledge(name)
            self.review()
        self.run_chores("fence")
        return erasure_id

    # --- clients ------------------------------------------------------------------------------------------------------

    def client(self, name: str) -> UUID:
        return next(c.id for c in self.state.clients.values() if c.name == name)

    def acknowledge(self, name: str, **changes: Any) -> None:
        """The client's worker has written down what it must leave out."""
        client = self.state.clients[self.client(name)]
        stated = [x.samples for x in self.state.exclusions.values() if x.client_id == client.id]
        self.ledgers.setdefault(name, set()).update(*stated)
        self.send(m.AcknowledgeExclusions(client.id, client.exclusions or "", **changes))

    def claim(self, name: str) -> tuple[Granted, ...]:
        granted: tuple[Granted, ...] = self.send(m.ClaimTasks(self.client(name)))
        left_out = frozenset(self.ledgers.get(name, ()))
        self._left_out |= {grant.task.lease_token or "": left_out for grant in granted}
        return granted

    def store_blob(self, digest: str, layout: str = UPDATE_LAYOUT, finite: bool = True) -> str:
        """As an operator."""
        self.record(self.announce(digest), layout, finite)
        return digest

    def announce(self, digest: str | None, task: Task | None = None, job: Job | None = None) -> Blob:
        """What a client, a kernel or, without either, an operator is about to store."""
        blob = replace(operators_blob(FEDERATION, self.now, digest, 100), id=UUID(int=next(self._counter) + 30_000))
        if task is not None:
            blob = replace(blob, origin="task", origin_id=task.id, client_id=task.client_id)
        if job is not None:
            blob = replace(blob, origin="job", origin_id=job.id)
        if source := task or job:
            blob = replace(blob, cohort_id=source.cohort_id, epoch=source.epoch)
        if job is None:
            same = (b for b in self.blobs_of_origin(blob.origin, blob.origin_id) if b.digest == digest)
            blob = next(same, blob)
        self.state = self.state.put(blob)
        return blob

    def blobs_of_origin(self, origin: str, origin_id: UUID | None) -> list[Blob]:
        return [b for b in self.state.blobs.values() if (b.origin, b.origin_id) == (origin, origin_id)]

    def record(self, blob: Blob, layout: str = UPDATE_LAYOUT, finite: bool = True) -> None:
        """All of its bytes are there. What is refused is given up."""
        try:
            self.send(self.record_of(blob, blob.digest or "", layout, finite))
        except Rejected:
            self.drop_blobs({blob.id})
            raise

    def record_of(self, blob: Blob, digest: str, layout: str, finite: bool = True) -> m.RecordBlob:
        return m.RecordBlob(blob.id, FEDERATION, digest, Facts(100, layout, UPDATE_LAYOUT, finite), blob.client_id)

    def drop_blobs(self, blob_ids: Collection[UUID]) -> None:
        kept = {key: blob for key, blob in self.state.blobs.items() if key not in blob_ids}
        known = {(b.federation_id, b.digest) for b in kept.values() if b.status == "stored"}
        facts = {key: facts for key, facts in self.state.facts.items() if key in known}
        self.state = replace(self.state, blobs=kept, facts=facts)

    def mark_dropping(self, blob_ids: Collection[UUID]) -> None:
        self.state = self.state.put_all(replace(self.state.blobs[key], status="dropping") for key in blob_ids)

    def is_held(self, task: Task) -> bool:
        """Whether its client may upload for it."""
        task = self.state.tasks[task.id]
        is_current = task.epoch == self.state.cohorts[task.cohort_id].epoch
        return task.status in ("ready", "leased") and task.attempt > 0 and is_current

    def upload(self, digest: str, task: Task) -> bool:
        """False: the client is not let in any more, or does not hold the task any more."""
        if not self.is_held(task):
            return False
        begun = self.announce(digest, task)
        if begun.status == "stored":
            return True
        try:
            self.record(begun)
        except Rejected:
            return False
        return True

    def train(self, task: Task) -> str:
        """The digest of what the client makes of the task's model: the same again for the same model."""
        left_out = self._left_out.get(task.lease_token or "", frozenset())
        digest = of_json({"client": task.client_name, "base": task.model_digest, "without": sorted(left_out)})
        self.provenance[digest] = self.provenance[task.model_digest] | {task.client_name}
        trained_on = {f"{task.client_name}#{row}" for row in ROWS if row not in left_out}
        self.samples_in[digest] = self.samples_in.get(task.model_digest, frozenset()) | trained_on
        self._trained_on[digest] = task.model_digest, task.client_name, frozenset(trained_on)
        self.upload(digest, task)
        return digest

    def _look_again(self, digests: Iterable[str]) -> None:
        """A quantised model that was made again without somebody is without them, and so is what was trained on it."""
        for digest in set(digests) & set(self._trained_on):
            base, client, rows = self._trained_on[digest]
            self.provenance[digest] = self.provenance[base] | {client}
            self.samples_in[digest] = self.samples_in.get(base, frozenset()) | rows

    def answer_to(self, task: Task, num_samples: int = 10) -> m.SubmitResult:
        metrics = dict(self.figures_of(task.model_digest)) if task.kind in FIGURES_ONLY else {}
        digest = self.train(task) if task.kind not in FIGURES_ONLY else None
        return m.SubmitResult(task.id, task.client_id, task.lease_token or "", digest, num_samples, metrics)

    def submit(self, task: Task, num_samples: int = 10) -> Any:
        return self.send(self.answer_to(task, num_samples))

    def claim_and_submit(self, *names: str) -> None:
        for name in names:
            for granted in self.claim(name):
                self.submit(granted.task)

    # --- compute and chores -------------------------------------------------------------------------------------------

    def lease_job(self, *kinds: str) -> Job | None:
        """The oldest job that is ready or whose holder went silent, leased under a token of its own."""
        for job in sorted(self.state.jobs.values(), key=lambda j: (j.created_at, j.id)):
            is_due = job.due_at is None or job.due_at <= self.now
            is_free = (job.status == "ready" and is_due) or (job.status == "leased" and is_due)
            if job.kind in kinds and is_free and is_wanted(self.state, job):
                token, until = f"job-{next(self._counter)}", self.now + timedelta(seconds=JOB_LEASE_S)
                leased = replace(job, status="leased", lease_token=token, due_at=until, attempt=job.attempt + 1)
                self.state = self.state.put(leased)
                return leased
        return None

    def outcome_of(self, job: Job) -> m.JobDone:
        token = job.lease_token or ""
        measured = job.inputs if (job.kernel or "").endswith("newcomer") else ()
        missing = [digest for digest in measured if digest in self.provenance and digest not in self.stored]
        assert not missing, f"kernel {job.kernel} reads what is not stored any more"
        if job.kernel in ("knot_profile", "spectral_profile"):
            clients = enumerate(update["client"] for update in job.params["updates"])
            clusters = {f"cluster:{client}": float(i % job.params["num_clusters"]) for i, client in clients}
            return m.JobDone(job.id, token, None, clusters)
        if job.kernel in ("knot_newcomer", "spectral_newcomer"):
            return m.JobDone(job.id, token, None, {f"distance:{n}": 1.0 for n in range(job.params["num_clusters"])})
        if job.kernel == "find_class":
            assert {job.params["before"], job.params["after"]} <= self.stored, "compared models are stored"
            found = {} if self.lost_class is None else {"skewed_class": float(self.lost_class), "accuracy_before": 0.9}
            return m.JobDone(job.id, token, None, found)
        order = _order(job)
        if order and job.params["state"] is not None and job.params["observed"] is None:
            return m.JobDone(job.id, token, None, order)
        if job.kernel not in MODELS_MADE_BY and not order:
            return m.JobDone(job.id, token, None, self.figures_of(job.params["weights"]))
        left_out = self._beyond_bounds(job)
        digest = of_json({"kernel": job.kernel, "params": _rounded(job.params), "left_out": sorted(left_out)})
        inputs = [one for one in job.inputs if one not in left_out.values()]
        held = self.state.jobs[job.id]
        counts = held.status == "leased" and held.lease_token == token  # else it is not stored
        is_awaited = counts and job.cohort_id is not None and self.state.cohorts[job.cohort_id].awaiting == job.id
        if is_awaited or digest not in self.provenance:
            self._look_again(inputs)
            self.provenance[digest] = frozenset[str]().union(*(self.provenance.get(d, ()) for d in inputs))
            samples = (self.samples_in.get(d, frozenset()) for d in inputs)
            self.samples_in[digest] = frozenset[str]().union(*samples)
        blob = self.announce(digest, job=job)  # by a pump that held its lease then
        record = self.record_of(blob, digest, MODEL_LAYOUT)
        return m.JobDone(job.id, token, record, order or dict.fromkeys(left_out, 1.0))

    @property
    def stored(self) -> set[str | None]:
        """Digests of what is in the blob store."""
        return {blob.digest for blob in self.state.blobs.values() if blob.status == "stored"}

    def _beyond_bounds(self, job: Job) -> dict[str, str]:
        """Figures by which the kernel says that it left an update out, with the update's digest."""
        clients = {u.digest: u.client_name for u in self.state.updates.values()}
        listed = [update["digest"] for update in job.params["updates"]] if "bounds" in job.params else []
        beyond = [(place, digest) for place, digest in enumerate(listed) if clients[digest] in self.beyond_bounds]
        return {f"left_out:{place}": digest for place, digest in beyond}

    def run_kernels(self) -> int:
        num_done = 0
        while job := self.lease_job("kernel"):
            self.send(self.outcome_of(job))
            num_done += 1
        return num_done

    def run_chores(self, *kinds: str) -> None:
        """Chores of these kinds, or of all."""
        while job := self.lease_job(*(kinds or CHORES)):
            self.run_chore(job)

    def run_chore(self, job: Job) -> None:
        if message := self._chore(job):
            self.send_together([message])
        held = self.state.jobs[job.id]
        if held.lease_token == job.lease_token:
            self.state = self.state.put(replace(held, status="done", due_at=None))

    def _chore(self, job: Job) -> m.Message[Any] | None:
        match job.kind:
            case "post":
                return posting.from_job(job)
            case "fence":
                return m.FenceErasure(UUID(job.params["erasure_id"]), job.id)
            case "purge":
                erasure = self.state.erasures[UUID(job.params["erasure_id"])]
                if erasure.status != "verifying":
                    return None
                self.purge(erasure)
                if refused := objections_to(self.state, erasure, self.now):
                    return m.HoldErasure(erasure.id, job.id, erasure.version, refused[0])
                return m.CompleteErasure(erasure.id, job.id, erasure.version, "signed")
            case "notify":
                error = "nobody answers" if job.attempt == 1 else None
                return m.SettleDelivery(UUID(job.params["delivery_id"]), job.id, error)
            case _:
                return None

    def inventory(self, erasure: Erasure) -> tuple[list[Checkpoint | Update], list[Job], list[Blob]]:
        """Everything that the lineage says was made with the leavers' data: rows of models and updates, kernels whose
        outputs nobody published, and what was never submitted or finished."""
        state = self.state
        leavers = {s.client_id for s in state.subjects.values() if s.erasure_id == erasure.id}
        lines = [line for line in state.affected_cohorts.values() if line.erasure_id == erasure.id]
        last = {line.cohort_id: line.epoch_before for line in lines}
        stay = erasure.scope == "samples"
        staying = {c for c in leavers if stay and state.clients[c].status != "erased"}
        models = [state.checkpoints[c] for c in cuts.tainted_checkpoints(state, frozenset(leavers))]
        models = [c for c in models if c.superseded_by is not None or not stay]
        models += [c for c in state.checkpoints.values() if c.superseded_by == erasure.id and c not in models]
        bases = {(c.cohort_id, c.digest) for c in models}

        def was_before(u: Update) -> bool:
            has_ended = state.cohorts[u.cohort_id].phase == "retired"
            return u.epoch <= last[u.cohort_id] if u.cohort_id in last else has_ended

        submissions = [u for u in state.updates.values() if u.digest is not None]
        updates = [u for u in submissions if u.client_id in leavers and (was_before(u) or u.client_id not in staying)]
        updates += [u for u in submissions if (u.cohort_id, u.base_digest) in bases and u not in updates]
        made: list[Job] = []
        since = {line.cohort_id: line.epoch_after for line in lines if line.action != "unlearned"}
        made_now = [j for j in state.jobs.values() if j.cohort_id in since and j.epoch >= since[j.cohort_id]]
        jobs = [j for j in state.jobs.values() if j not in made_now and j.output is not None]
        spared = {c.digest for c in state.checkpoints.values() if c.superseded_by is None}
        spared |= {j.output for j in made_now if j.output is not None}
        is_growing = True
        while is_growing:  # what a method makes on its way may be trained on, and be the input of another kernel
            derived = {c.digest for c in models} | {u.digest for u in updates} | {j.output for j in made}
            new = [j for j in jobs if derived & set(j.inputs) and j.output not in derived | spared]
            made += new
            outputs = {j.output for j in made}
            trained_on = [u for u in submissions if u.base_digest in outputs and u not in updates]
            updates += trained_on
            is_growing = bool(new or trained_on)
        runs = {model.run_id for model in models} | {line.run_id for line in lines}
        return [*models, *updates], made, self._unsubmitted(leavers if not stay else set(), runs)

    def _unsubmitted(self, leavers: set[UUID], runs: set[UUID]) -> list[Blob]:
        submitted = {(u.task_id, u.digest) for u in self.state.updates.values()}

        def is_left(b: Blob) -> bool:
            never_submitted = b.origin == "task" and (b.origin_id, b.digest) not in submitted
            return never_submitted or (b.origin == "job" and b.status == "arriving")

        def is_lost(b: Blob) -> bool:
            cohort = self.state.cohorts.get(b.cohort_id or b.id)
            return b.client_id in leavers or (cohort is not None and cohort.run_id in runs and self._is_cut_off(b))

        return [b for b in self.state.blobs.values() if is_left(b) and is_lost(b)]

    def _is_cut_off(self, b: Blob) -> bool:
        cohort = self.state.cohorts.get(b.cohort_id or b.id)
        return cohort is not None and (cohort.phase == "retired" or (b.epoch is not None and b.epoch < cohort.epoch))

    def blobs_of(
        self, erasure: Erasure, rows: Sequence[Checkpoint | Update], made: Sequence[Job], left: Sequence[Blob]
    ) -> set[UUID]:
        """The blobs that these are, whoever else has the same bytes."""
        state = self.state
        models = [row for row in rows if isinstance(row, Checkpoint)]
        updates = [row for row in rows if isinstance(row, Update)]
        served = (c for c in state.checkpoints.values() if c.superseded_by is None and c.stored)
        clean = {(c.cohort_id, c.epoch, c.digest) for c in served}
        places = {(c.cohort_id, c.epoch, c.digest) for c in models}
        gone = {c.digest for c in models} | {j.output for j in made}
        origins = {u.task_id for u in updates} | {u.id for u in updates} | {j.id for j in made}
        update_ids = {u.id: u.cohort_id for u in updates}
        calibrated = {
            (update_ids[c.update_id], c.digest)
            for c in state.contributions.values()
            if c.update_id in update_ids and c.digest is not None
        }
        subjects = {s.client_id for s in state.subjects.values() if s.erasure_id == erasure.id}
        leavers = subjects if erasure.scope == "client" else set()

        def is_gone(b: Blob) -> bool:
            place = (b.cohort_id, b.epoch, b.digest)
            same_bytes = b.origin == "job" and place not in clean and b.digest in gone and self._is_cut_off(b)
            is_model = b.origin == "job" and place in places and place not in clean
            is_calibrated = b.origin == "job" and (b.cohort_id, b.digest) in calibrated
            return b.origin_id in origins or b.client_id in leavers or same_bytes or is_model or is_calibrated

        return {b.id for b in state.blobs.values() if is_gone(b)} | {b.id for b in left}

    def purge(self, erasure: Erasure) -> None:
        rows, made, left = self.inventory(erasure)
        gone = self.blobs_of(erasure, rows, made, left)
        self.state = self.state.put_all(replace(row, stored=False) for row in rows)
        self.steps_gone |= {j.output for j in made if j.output is not None}
        self.drop_blobs(gone)
        if any(x.action == "unlearned" for x in self.state.affected_cohorts.values() if x.erasure_id == erasure.id):
            return  # what an approximate method leaves behind cannot be told from digests
        stored = {digest for digest in self.stored if digest is not None}
        self._look_again(stored)
        names = {s.name for s in self.state.subjects.values() if s.erasure_id == erasure.id}
        if erasure.scope == "samples":
            names, made_of = {f"{name}#{row}" for name in names for row in erasure.samples[name]}, self.samples_in
        else:
            made_of = self.provenance
        found = [digest for digest in stored if not names.isdisjoint(made_of.get(digest, ()))]
        assert not found, f"something of {names} is left after the purge"

    def settle(self) -> None:
        """Everything that happens without a client and without time passing."""
        num_events = -1
        while num_events != len(self.events):
            num_events = len(self.events)
            self.run_kernels()
            self.run_chores()
            self.review()

    # --- reading ------------------------------------------------------------------------------------------------------

    def run(self, run_id: UUID) -> Run:
        return self.state.runs[run_id]

    def cohort(self, run_id: UUID, name: str | None = None) -> Cohort:
        """The run's cohort of that name; the first one without."""
        return next(c for c in self.state.cohorts.values() if c.run_id == run_id and name in (None, c.name))

    def cohorts(self, run_id: UUID) -> dict[str, Cohort]:
        """By name, those that are not retired."""
        own = (c for c in self.state.cohorts.values() if c.run_id == run_id and c.phase != "retired")
        return {c.name: c for c in sorted(own, key=lambda c: c.name)}

    def erasure(self, erasure_id: UUID) -> Erasure:
        return self.state.erasures[erasure_id]

    def awaited_round(self, run_id: UUID) -> Round:
        awaiting = self.cohort(run_id).awaiting
        assert awaiting is not None
        return self.state.rounds[awaiting]

    def task_of(self, name: str, status: str | None = None) -> Task:
        """The client's newest task, of a status if given."""
        own = (t for t in self.state.tasks.values() if t.client_name == name and status in (None, t.status))
        return max(own, key=lambda t: (t.round, t.id))

    def open_tasks(self, cohort_id: UUID) -> list[Task]:
        return [t for t in self.state.tasks.values() if t.cohort_id == cohort_id and t.status in OPEN_TASK]

    def updates(self, status: str | None = None) -> list[Update]:
        return [u for u in self.state.updates.values() if status in (None, u.status)]

    def checkpoints(self, run_id: UUID) -> list[Checkpoint]:
        own = (c for c in self.state.checkpoints.values() if c.run_id == run_id)
        return sorted(own, key=lambda c: (c.epoch, c.round))

    def contributions(self, checkpoint: Checkpoint) -> list[Contribution]:
        own = (c for c in self.state.contributions.values() if c.checkpoint_id == checkpoint.id)
        return sorted(own, key=lambda c: c.position)

    def lineage(self, checkpoint: Checkpoint) -> list[Checkpoint]:
        """The checkpoint and its bases, newest first."""
        line = [checkpoint]
        while (base_id := line[-1].base_id) is not None:
            assert len(line) <= len(self.state.checkpoints), "the lineage has a cycle"
            line.append(self.state.checkpoints[base_id])
        return line

    def parents(self, checkpoint_id: UUID | None) -> list[Parent]:
        own = (p for p in self.state.parents.values() if p.checkpoint_id == checkpoint_id)
        return sorted(own, key=lambda p: p.position)

    def above(self) -> dict[UUID, set[UUID]]:
        """Checkpoint -> those that it was made of: its base, its parents, and where it is a run's first model, every
        model with the same bytes, perhaps of another run."""
        models = self.state.checkpoints
        found = {c.id: {c.base_id} if c.base_id is not None else set() for c in models.values()}
        for parent in self.state.parents.values():
            found[parent.checkpoint_id].add(parent.parent_id)
        first = {
            c.digest: {o.id for o in models.values() if o.digest == c.digest}
            for c in models.values()
            if c.kind == "init"
        }
        for c in models.values():
            if c.kind == "init":
                found[c.id] |= first[c.digest]
        return found

    def clients_in(self, checkpoint: Checkpoint) -> frozenset[str]:
        """Whose updates the lineage says are in a model, through bases and parents alike, without those forgotten."""
        above = self.above()
        return frozenset(c.name for c in self.state.clients.values() if self._has(checkpoint, c.id, above))

    def _has(self, checkpoint: Checkpoint, client_id: UUID, above: Mapping[UUID, set[UUID]]) -> bool:
        found, waiting = {checkpoint.id}, [checkpoint.id]
        while waiting:
            one = self.state.checkpoints[waiting.pop()]
            if str(client_id) in one.forgets:
                found.discard(one.id)
                continue
            waiting += above[one.id] - found
            found |= above[one.id]
        contributions = self.state.contributions.values()
        return any(c.client_id == client_id and c.checkpoint_id in found for c in contributions)


def with_run(*names: str, **changes: Any) -> tuple[World, UUID]:
    """A world with these clients and one run that has just asked for its first round."""
    world = World()
    world.enrol(*names)
    run_id = world.create_run(**changes)
    world.settle()
    return world, run_id
