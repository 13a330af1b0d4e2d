"""A machine that does to the engine whatever workers, pumps, operators, erasure and time may do, in any order.

Random steps alone hardly ever complete a round, so some rules are biased towards progress: they bring runs into
deep states, from which the random ones then depart.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from coordinator.engine import messages as m
from coordinator.engine.entities import ENDED, OPEN_TASK, SETTLED, Blob, Job, Task
from coordinator.engine.replies import Accepted
from services.core.digests import of_json
from services.core.errors import Rejected
from services.wire.v1.work import FIGURES_ONLY
from tests.property import invariants
from tests.property.transitions import Watch
from tests.support.world import OFFICER, ROWS, World

FIRST = ("ada", "bob", "cyd", "dan")
NEWCOMERS = ("eve", "fay")
"""Enrolled after the runs were created; they may join them."""
CLIENTS = (*FIRST, *NEWCOMERS)
VALIDATION = of_json("validation set")
STOP = {"rounds": 8}
SOON = {"rounds": 4}
FEDAVG = {"algorithm": "fedavg"}
ONE_IN_TURN = {"training": {"algorithm": "fedavg", "clients_per_round": 1}, "selection": "round_robin"}
TWO_OF_ALL = {"algorithm": "fedavg", "clients_per_round": 2}
BUFFERED = {"algorithm": "fedbuff", "buffer_size": 2, "concurrency": 3}
JUDGED = {"at_clients": True}
CHAIN = {"kind": "tree", "probabilities": {"ada": 0.1, "cyd": 0.2, "bob": 0.25, "dan": 0.45}}
"""A tree of four levels: leaves inside {ada, cyd} inside {ada, bob, cyd} inside everybody."""
LINES: tuple[dict[str, Any], ...] = (
    {"training": {"algorithm": "fedavg"}, "stop": STOP},
    {"training": {"algorithm": "fedavg", "clients_per_round": 3, "quorum": 2, "deadline_s": 30.0}, "stop": STOP},
    {"training": {"algorithm": "fedavg", "clients_per_round": 1}, "selection": "round_robin", "stop": STOP},
    {
        "training": {"algorithm": "fedavg", "quorum": 2, "deadline_s": 5.0},
        "validation": {"at_clients": True},
        "stop": STOP,
    },
    {"training": {"algorithm": "fedbuff", "buffer_size": 2, "concurrency": 2, "staleness_bound": 1}, "stop": STOP},
    {"training": {"algorithm": "fedbuff", "buffer_size": 3, "concurrency": 4}, "stop": STOP},
    {"training": {"algorithm": "fedbuff", "buffer_size": 1, "concurrency": 3, "staleness_bound": 0}, "stop": STOP},
    {
        "training": {"algorithm": "fedbuff", "buffer_size": 2, "concurrency": 4, "staleness_bound": 1},
        "validation": {"at_clients": True, "every": 2},
        "retention": {"updates": 1},
        "stop": STOP,
    },
    {"training": {"algorithm": "fats", "clients_per_round": 2}, "stop": STOP},
    {"training": {"algorithm": "exact_fun", "quantum": 0.01}, "stop": STOP},
    {"training": {"algorithm": "exact_fun", "quantum": 1.0}, "stop": STOP},
    {
        "training": {"algorithm": "fedavg", "clients_per_round": 2, "quorum": 1, "deadline_s": 30.0},
        "selection": {"policy": "k_center", "profile_deadline_s": 30.0},
        "stop": STOP,
    },
    {
        "training": {"algorithm": "fedbuff", "buffer_size": 2, "concurrency": 2},
        "selection": {"policy": "dqn", "profile_deadline_s": 30.0},
        "validation": {"data": VALIDATION},
        "retention": {"updates": 1},
        "stop": STOP,
    },
)
FAMILIES: tuple[dict[str, Any], ...] = (
    {"topology": {"kind": "clusters", "num_clusters": 2, "assignment": "random"}, "training": FEDAVG, "stop": SOON},
    {"topology": {"kind": "clusters", "num_clusters": 2, "assignment": "knot"}, "training": BUFFERED, "stop": SOON},
    {
        "topology": {"kind": "clusters", "num_clusters": 2, "assignment": "random", "merge": "best"},
        "training": BUFFERED,
        "validation": JUDGED,
        "stop": SOON,
    },
    {"topology": {"kind": "bi_model"}, "training": FEDAVG, "stop": SOON},
    {"topology": {"kind": "bi_model"}, "training": TWO_OF_ALL, "validation": JUDGED, "stop": SOON},
    {"topology": {"kind": "tree", "shape": "balanced"}, "training": FEDAVG, "stop": SOON},
    {"topology": {"kind": "tree", "shape": "balanced"}, **ONE_IN_TURN, "stop": SOON},
    {"topology": CHAIN, "training": FEDAVG, "stop": SOON},
    {"topology": CHAIN, "training": {"algorithm": "fedavg", "quorum": 1, "deadline_s": 5.0}, "stop": SOON},
    {
        "topology": {"kind": "clusters", "num_clusters": 1, "assignment": "random", "max_size": 4, "inside": CHAIN},
        "training": FEDAVG,
        "stop": SOON,
    },
    {"topology": {"kind": "isolated"}, "training": FEDAVG, "stop": SOON},
)

clients = st.sampled_from(CLIENTS)
any_index = st.integers(min_value=0, max_value=999)
newcomers = st.lists(st.sampled_from(NEWCOMERS), min_size=1, max_size=2, unique=True)
subjects = st.lists(clients, min_size=1, max_size=2, unique=True)
methods = st.sampled_from(["auto", "auto", "retrain", "reinit", "rapid"])
APPROXIMATE: dict[str, dict[str, Any]] = {
    "not": {},
    "federaser": {"deadline_s": 30.0},
    "pga": {"radius": 1.0, "stop_accuracy": 0.1, "deadline_s": 30.0},
    "fedforget": {"rounds": 2, "deadline_s": 30.0},
}
"""Methods with their parameters: one that asks nobody, one that walks through the history, two that ask the leaver."""
AUDIT: dict[str, Any] = {"thresholds": {"max_backdoor_success": 0.5}, "num_classes": 10, "deadline_s": 30.0}
approximations = st.sampled_from(list(APPROXIMATE))
recent = st.integers(min_value=-6, max_value=-1)
"""Of a list, one of the newest."""


class EngineMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World(figures_of=_figures_of)
        self.grants: list[Task] = []
        """Every task as it was handed out, with its token and the epoch and model of that moment."""
        self.newest_token: dict[UUID, str] = {}
        self.leases: list[Job] = []
        self.newest_lease: dict[UUID, str] = {}
        self.watch = Watch()
        self.num_removed = 0
        self.may_fail = False
        """Whether a kernel failed, so that a run that still has clients may fail."""

    @initialize(
        specs=st.lists(st.sampled_from(LINES) | st.sampled_from(FAMILIES), min_size=1, max_size=2),
        num_rounds=st.integers(min_value=0, max_value=3),
        order=st.permutations(CLIENTS),
    )
    def create_runs(self, specs: list[dict[str, Any]], num_rounds: int, order: list[str]) -> None:
        """Runs that are some rounds old: most of what can go wrong needs a history."""
        self.world.enrol(*reversed(FIRST))
        self.world.store_blob(VALIDATION)
        self.runs = [self.world.create_run(name=f"run-{i}", **changes) for i, changes in enumerate(specs)]
        self.world.enrol(*NEWCOMERS)
        for _ in range(num_rounds):
            self.round_completes(order, slow=None)

    @invariant()
    def every_law_holds(self) -> None:
        self.watch.all_hold(self.world)
        invariants.all_hold(self.world)

    # --- workers ------------------------------------------------------------------------------------------------------

    @rule(name=clients)
    def claim(self, name: str) -> None:
        self._claim(name)

    def _claim(self, name: str) -> list[Task]:
        try:
            granted = self.world.claim(name)
        except Rejected as rejection:
            client = self.world.state.clients[self.world.client(name)]
            is_heard = client.status == "active" or client.needed_by is not None
            is_behind = is_heard and client.exclusions != client.exclusions_acked
            assert rejection.code == ("ledger-behind" if is_behind else f"client-{client.status}"), "turned away"
            return []
        client = self.world.state.clients[self.world.client(name)]
        is_told = client.exclusions in (None, client.exclusions_acked)
        assert not granted or is_told, "handed out before the ledger is written"
        for grant in granted:
            task = grant.task
            assert task.client_name == name, "another client's task"
            assert grant.run.status == "running", "work of a run that does not run"
            assert task.lease_token not in {known.lease_token for known in self.grants}, "a token was given twice"
            self.newest_token[task.id] = task.lease_token or ""
            self.grants.append(task)
            if task.kind not in FIGURES_ONLY:
                self.world.train(task)  # uploaded at once, submitted whenever
        return [grant.task for grant in granted]

    @precondition(lambda self: self.grants)
    @rule(index=st.one_of(recent, any_index), num_samples=st.integers(min_value=1, max_value=5))
    def submit(self, index: int, num_samples: int) -> None:
        grant = _pick(self.grants, index)
        self._submit_what_another_uploaded(grant)
        self._submit(grant, num_samples)

    def _submit_what_another_uploaded(self, grant: Task) -> None:
        world = self.world
        own = {blob.digest for blob in world.blobs_of_origin("task", grant.id)}
        others = [b.digest for b in world.state.blobs.values() if b.origin == "task" and b.digest not in own]
        if others and grant.kind not in FIGURES_ONLY:
            message = m.SubmitResult(grant.id, grant.client_id, grant.lease_token or "", others[-1], 3, {})
            (answer,) = world.send_together([message])
            assert isinstance(answer, Rejected), "submitted what was not uploaded for the task"

    def _submit(self, grant: Task, num_samples: int = 3) -> None:
        """Submit what was made of a grant, however old it is, and check that it counts exactly when it should."""
        before = self.world.state
        message = self.world.answer_to(grant, num_samples)
        task, cohort = before.tasks[grant.id], before.cohorts[grant.cohort_id]
        is_newest = self.newest_token[grant.id] == grant.lease_token
        was_done, is_fenced = task.status == "done", grant.epoch != cohort.epoch
        try:
            answer = self.world.send(message)
        except Rejected as rejection:
            assert len(self.world.state.updates) == len(before.updates), "a refused update was kept"
            if is_fenced and not was_done and before.clients[grant.client_id].status == "active":
                assert rejection.code == "epoch-fenced", "a fenced update was refused for something else"
            return
        assert isinstance(answer, Accepted)
        assert is_newest, "a lease token was accepted after another claim"
        assert was_done or task.status in ("leased", "ready"), "a late update was accepted"
        if was_done:
            assert len(self.world.state.updates) == len(before.updates), "a replay was counted"
            assert self.world.state.updates[answer.update_id].task_id == grant.id
        else:
            assert not is_fenced, "an update from before a fence was accepted"
            bound = before.rounds[grant.round_id].staleness_bound
            assert bound is None or cohort.round - grant.base_round <= bound, "a stale update was accepted"

    @rule(order=st.permutations(CLIENTS), slow=clients)
    def slowest_client_answers_after_the_others(self, order: list[str], slow: str) -> None:
        """Some rounds go by, or the deadline does, while one client works on what it was given."""
        kept = self._claim(slow)
        others = [name for name in order if name != slow]
        for _ in range(2):
            self.whole_cohort_submits(others, at_once=False)
            self.time_passes(6)
            self.world.run_kernels()
        for task in kept:
            self._heartbeat(task)
            self._submit(task)

    @precondition(lambda self: self.grants)
    @rule(index=recent)
    def submit_twice_with_the_answer_lost(self, index: int) -> None:
        self._submit(_pick(self.grants, index))
        self._submit(_pick(self.grants, index))

    @precondition(lambda self: self.grants)
    @rule(index=st.one_of(recent, any_index))
    def submit_something_else_again(self, index: int) -> None:
        grant, world = _pick(self.grants, index), self.world
        before = world.state
        if before.tasks[grant.id].status != "done":
            return
        digest = of_json({"something else": grant.client_name})
        world.provenance[digest] = frozenset({grant.client_name})
        world.upload(digest, grant)
        (answer,) = world.send_together([replace(world.answer_to(grant), digest=digest)])
        assert isinstance(answer, Rejected), "a second result was accepted"
        assert world.state.updates == before.updates

    @rule()
    def everything_recent_arrives_again(self) -> None:
        """Stragglers, retries after lost answers and agents that slept through a fence, all at once."""
        for grant in self.grants[-10:]:
            self._submit(grant)
        self._bring_back_what_is_gone()

    def _bring_back_what_is_gone(self) -> None:
        """Anybody who kept a copy may try."""
        world = self.world
        models, blobs = world.state.checkpoints.values(), world.state.blobs.values()
        served = {c.digest for c in models if c.superseded_by is None}
        superseded = dict.fromkeys(c.digest for c in models if c.superseded_by is not None and c.digest not in served)
        held = [grant for grant in self.grants[-10:] if world.is_held(grant)]
        for digest in list(superseded)[-2:]:
            for sender in (None, *held[-1:]):
                _refused(world, world.announce(digest, sender), "bytes of a superseded model came back")
        for digest in [b.digest or "" for b in blobs if b.origin == "task" and b.status == "stored"][-1:]:
            _refused(world, world.announce(digest), "an operator uploaded a client's update")
            try:
                world.create_run(name="never", init=digest)
            except Rejected:
                continue
            raise AssertionError("a run began with a client's update")

    @precondition(lambda self: self.grants)
    @rule(index=st.one_of(recent, any_index))
    def heartbeat(self, index: int) -> None:
        self._heartbeat(_pick(self.grants, index))

    def _heartbeat(self, grant: Task) -> None:
        message = m.RenewLease(grant.id, grant.client_id, grant.lease_token or "", 0.5)
        (answer,) = self.world.send_together([message])
        if not isinstance(answer, Rejected):
            assert self.newest_token[grant.id] == grant.lease_token, "a heartbeat with a lost token was heard"

    @precondition(lambda self: self.grants)
    @rule(index=st.one_of(recent, any_index), retryable=st.booleans())
    def fail(self, index: int, retryable: bool) -> None:
        grant = _pick(self.grants, index)
        message = m.FailTask(grant.id, grant.client_id, grant.lease_token or "", retryable, "out of memory")
        (answer,) = self.world.send_together([message])
        if not isinstance(answer, Rejected):
            assert self.newest_token[grant.id] == grant.lease_token, "a failure with a lost token was heard"

    @rule(name=clients)
    def restart_agent(self, name: str) -> None:
        """Perhaps on another machine: the ledger is not there."""
        if self.world.state.clients[self.world.client(name)].status == "active":
            self.world.ledgers.pop(name, None)
        self.world.send_together([m.OpenSession(self.world.client(name), "1.0")])

    # --- time ---------------------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([1, 6, 31, 61]))
    def time_passes(self, seconds: int) -> None:
        self.world.advance(seconds)
        self.world.tick()

    @rule(name=clients)
    def agent_sleeps_while_its_task_is_claimed_again(self, name: str) -> None:
        slept = self._claim(name)
        self.world.advance(61)
        self.world.tick()
        self.claim(name)
        for task in slept:
            self._submit(task)

    @rule()
    def stray_timers_change_nothing(self) -> None:
        before = self.world.state
        early = [r.id for r in before.rounds.values() if r.due_at is None or r.due_at > self.world.now]
        held = [t for t in before.tasks.values() if t.due_at is None or t.due_at > self.world.now]
        self.world.send_together([m.DeadlinePassed(round_id) for round_id in early])
        self.world.send_together([m.LeaseRanOut(t.id, t.lease_token or "") for t in held])
        assert self.world.state == before

    @rule()
    def stray_words_of_the_clockwork(self) -> None:
        """It looked a while ago; meanwhile runs were paused or cancelled and requests moved on."""
        self.world.send_together([m.OpenRounds(run_id) for run_id in self.runs])
        self.world.send_together([m.ReviewErasure(erasure_id) for erasure_id in self.world.state.erasures])
        old = [j for j in self.world.state.jobs.values() if j.kind in ("fence", "purge") and j.status == "done"]
        before = self.world.state.erasures
        for job in old:
            erasure = before[UUID(job.params["erasure_id"])]
            version = erasure.version - (erasure.status == "verifying")  # then another purge is under way
            stray = m.FenceErasure(erasure.id, job.id) if job.kind == "fence" else None
            self.world.send_together([stray or m.CompleteErasure(erasure.id, job.id, version, "signed again")])
        assert self.world.state.erasures == before, "a chore that was done twice counted twice"

    @rule()
    def clockwork_turns(self) -> None:
        self.world.tick()

    # --- compute ------------------------------------------------------------------------------------------------------

    @rule()
    def lease_kernel(self) -> None:
        if job := self.world.lease_job("kernel"):
            cohort = self.world.state.cohorts[job.cohort_id or UUID(int=0)]
            assert job.epoch == cohort.epoch, "a kernel of a fenced line was leased"
            self.leases.append(job)
            self.newest_lease[job.id] = job.lease_token or ""

    @precondition(lambda self: self.leases)
    @rule(index=st.one_of(recent, any_index))
    def finish_kernel(self, index: int) -> None:
        """Any pump that ever leased a kernel comes back, also one that slept through a fence or another's lease."""
        lease = _pick(self.leases, index)
        cohort = self.world.state.cohorts[lease.cohort_id or UUID(int=0)]
        before = self.world.state.cohorts
        outcome = self.world.outcome_of(lease)
        counted = self.world.send(outcome)
        if counted:
            assert self.newest_lease[lease.id] == lease.lease_token, "a job's lost lease was accepted"
            assert lease.epoch == cohort.epoch, "a result from before a fence was accepted"
        else:
            assert self.world.state.cohorts == before, "a refused result changed a cohort"
            self.world.drop_blobs({outcome.blob.blob_id} if outcome.blob is not None else ())

    @rule(index=recent, retryable=st.booleans(), storage_full=st.booleans())
    def fail_kernel(self, index: int, retryable: bool, storage_full: bool) -> None:
        self.lease_kernel()
        if not self.leases:
            return
        lease = _pick(self.leases, index)
        failure = m.JobFailed(lease.id, lease.lease_token or "", "no memory", retryable, storage_full and retryable)
        self.may_fail |= bool(self.world.send(failure))

    @rule()
    def two_pumps_take_the_same_kernel(self) -> None:
        self.lease_kernel()
        self.world.advance(31)
        self.lease_kernel()

    @rule()
    def run_chores(self) -> None:
        self.world.run_chores()

    # --- operators ----------------------------------------------------------------------------------------------------

    @rule(index=any_index)
    def pause(self, index: int) -> None:
        self.world.send_together([m.PauseRun(_pick(self.runs, index), "operator", "maintenance")])

    @rule(index=any_index)
    def resume(self, index: int) -> None:
        self.world.send_together([m.ResumeRun(_pick(self.runs, index))])

    @rule(order=st.permutations(CLIENTS), index=any_index)
    def pause_falls_while_the_clockwork_looks(self, order: list[str], index: int) -> None:
        self.whole_cohort_submits(order, at_once=False)
        self.world.run_kernels()
        self.pause(index)
        self.stray_words_of_the_clockwork()

    @precondition(lambda self: len(self.runs) > 1)
    @rule(index=any_index, really=st.integers(min_value=0, max_value=3))
    def cancel(self, index: int, really: int) -> None:
        if really == 0:
            self.world.send_together([m.CancelRun(_pick(self.runs, index), "no longer needed")])

    @rule(index=any_index, newcomers=newcomers)
    def join(self, index: int, newcomers: list[str]) -> None:
        """Anybody may be let in, also who was forgotten, takes part already, or comes when the run is over."""
        world, run_id = self.world, _pick(self.runs, index)
        erased = [name for name in newcomers if world.state.clients[world.client(name)].status == "erased"]
        before = world.state
        try:
            world.join(run_id, *newcomers)
        except Rejected as rejection:
            assert rejection.code in ("conflict", "already-erased"), rejection
            assert replace(world.state, samples={}) == replace(before, samples={}), (
                "a refused newcomer changed something"
            )
            return
        assert not erased, "an erased client came back"
        assert before.runs[run_id].status not in ENDED, "a run that is over was joined"

    @rule(index=any_index, newcomers=newcomers, order=st.permutations(CLIENTS))
    def join_and_work(self, index: int, newcomers: list[str], order: list[str]) -> None:
        self.join(index, newcomers)
        self.everybody_works_for_a_while(order)

    @precondition(lambda self: self.num_removed < 2)
    @rule(name=clients)
    def remove_client(self, name: str) -> None:
        self.num_removed += 1
        self.world.send(m.RemoveClient(self.world.client(name)))

    @precondition(lambda self: self.num_removed < 2)
    @rule(index=any_index)
    def remove_a_client_that_was_asked(self, index: int) -> None:
        if asked := [t.client_name for t in self.world.state.tasks.values() if t.status in OPEN_TASK | {"failed"}]:
            self.remove_client(_pick(asked, index))

    # --- erasure ------------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.world.state.erasures) < 5)
    @rule(names=subjects, method=methods, needs_approval=st.booleans())
    def file(self, names: list[str], method: str, needs_approval: bool) -> None:
        """Clients may be forgotten already, or about to be; the fence falls whenever chores are run."""
        world = self.world
        under_way = {s.name for s in world.state.subjects.values() if s.active}
        erased = {name for name in names if world.state.clients[world.client(name)].status == "erased"}
        try:
            callbacks = ({"url": "https://example.org"},) if needs_approval else ()
            erasure_id = world.file(*names, method=method, needs_approval=needs_approval, callbacks=callbacks)
        except Rejected as rejection:
            allowed = {"already-erased": bool(erased - under_way), "conflict": bool(under_way & set(names))}
            allowed["method-unavailable"] = method == "reinit"
            assert allowed.get(rejection.code), f"a second request was refused: {rejection}"
            return
        assert erased <= under_way, "an erased client was forgotten again"
        assert (world.erasure(erasure_id).duplicate_of is not None) == bool(under_way & set(names)), "a second request"

    @precondition(lambda self: len(self.world.state.erasures) < 5)
    @rule(names=subjects, method=methods)
    def fence(self, names: list[str], method: str) -> None:
        self.file(names, method, needs_approval=False)
        self.world.run_chores("fence")

    @precondition(lambda self: len(self.world.state.erasures) < 3 and len(self.runs) > 1)
    @rule(names=subjects, method=methods, index=any_index)
    def cancel_while_a_client_is_forgotten(self, names: list[str], method: str, index: int) -> None:
        self.fence(names, method)
        self.cancel(index, really=0)
        self.world.settle()

    @precondition(lambda self: len(self.world.state.erasures) < 4)
    @rule(name=clients, approximation=approximations, is_audited=st.booleans(), falls_back=st.booleans())
    def forget_approximately(self, name: str, approximation: str, is_audited: bool, falls_back: bool) -> None:
        """By a method that mends the model instead of training it again, perhaps with an audit and a way back."""
        world = self.world
        changes: dict[str, Any] = {"method": approximation, "params": APPROXIMATE[approximation]}
        changes |= {"audit": AUDIT if is_audited else None, "fallback": "retrain" if falls_back else None}
        try:
            world.file(name, guarantee="approximate", **changes)
        except Rejected as rejection:
            known = ("already-erased", "method-unavailable", "conflict")
            assert rejection.code in known, rejection
            return
        world.run_chores("fence")

    @precondition(lambda self: len(self.world.state.erasures) < 3)
    @rule(name=clients, approximation=approximations, is_audited=st.booleans(), order=st.permutations(CLIENTS))
    def method_and_recovery_go_on(self, name: str, approximation: str, is_audited: bool, order: list[str]) -> None:
        self.forget_approximately(name, approximation, is_audited, falls_back=True)
        self.everybody_works_for_a_while(order)

    @precondition(lambda self: len(self.world.state.erasures) < 5)
    @rule(name=clients, method=methods, row=st.sampled_from(ROWS), needs_approval=st.booleans())
    def exclude(self, name: str, method: str, row: int, needs_approval: bool) -> None:
        """One sample of a client is to be forgotten; the fence falls at once, or when somebody approves."""
        world, changes = self.world, {"method": method, "needs_approval": needs_approval}
        try:
            erasure_id = world.file(name, scope="samples", samples={name: [row]}, **changes)
        except Rejected as rejection:
            assert rejection.code in ("already-erased", "method-unavailable"), rejection
            return
        original = world.state.erasures[world.erasure(erasure_id).duplicate_of or erasure_id]
        assert original.scope == "client" or row in original.samples[name], "a duplicate of something else"
        world.run_chores("fence")

    @precondition(lambda self: self.world.state.exclusions)
    @rule(order=st.permutations(CLIENTS))
    def workers_write_their_ledgers(self, order: list[str]) -> None:
        for name in order:
            client = self.world.state.clients[self.world.client(name)]
            if client.status == "active" and client.exclusions is not None:
                self.world.acknowledge(name)

    @precondition(lambda self: len(self.world.state.erasures) < 4)
    @rule(name=clients, method=methods, row=st.sampled_from(ROWS))
    def sample_is_erased_while_the_ledger_is_written(self, name: str, method: str, row: int) -> None:
        self.exclude(name, method, row, needs_approval=False)
        read = self.world.state.clients[self.world.client(name)].exclusions
        self.exclude(name, method, (row + 1) % len(ROWS), needs_approval=False)
        client = self.world.state.clients[self.world.client(name)]
        if read is not None and read != client.exclusions and client.status == "active":
            (answer,) = self.world.send_together([m.AcknowledgeExclusions(client.id, read)])
            assert isinstance(answer, Rejected), "what was read before counts as all there is"

    @precondition(lambda self: self.world.state.exclusions)
    @rule()
    def workers_cannot_leave_samples_out(self) -> None:
        for client in self.world.state.clients.values():
            told = m.AcknowledgeExclusions(client.id, client.exclusions or "", problem="the disk is full")
            self.world.send_together([told])

    @precondition(lambda self: self.world.state.erasures)
    @rule(index=recent, really=st.integers(min_value=0, max_value=3))
    def officer_decides(self, index: int, really: int) -> None:
        erasure_id = _pick(list(self.world.state.erasures), index)
        denied = m.DenyErasure(erasure_id, "not this client's request", OFFICER)
        approved = m.ApproveErasure(erasure_id, OFFICER)
        message = (denied, m.CancelErasure(erasure_id), approved, approved)
        (answer,) = self.world.send_together([message[really]])
        assert not isinstance(answer, Rejected) or answer.code == "conflict"

    @precondition(lambda self: len(self.world.state.erasures) < 4)
    @rule(names=subjects, order=st.permutations(CLIENTS), method=methods)
    def fence_falls_while_another_client_is_forgotten(self, names: list[str], order: list[str], method: str) -> None:
        self.fence(names[:1], method)
        self.round_completes(order, slow=None)
        self.world.review()
        self.fence([order[0]], method)
        self.round_completes(order, slow=None)

    @precondition(lambda self: self.world.state.checkpoints and len(self.runs) < 3)
    @rule(index=any_index, names=subjects)
    def begin_with_a_model_of_another_run(self, index: int, names: list[str]) -> None:
        world = self.world
        model = _pick(list(world.state.checkpoints.values()), index)
        made = [c for c in world.state.checkpoints.values() if c.digest == model.digest and c.kind == "aggregate"]
        if len({world.made_of[c.id] for c in made}) > 1:
            return  # a quantised model, made again from fewer clients: its bytes do not say which of the two it is
        active = [c.name for c in world.state.clients.values() if c.status == "active"]
        taken = [name for name in active if name not in names] or active
        if not taken:
            return
        choices = [LINES[0], FAMILIES[3], *(FAMILIES[:1] if len(taken) > 1 else ())]
        changes = {**_pick(choices, index), "clients": taken, "init": model.digest}
        try:
            self.runs.append(world.create_run(name=f"run-{len(self.runs)}", **changes))
        except Rejected:
            assert model.superseded_by is not None, "a clean model may be started from"
            return
        same = [c.superseded_by for c in world.state.checkpoints.values() if c.digest == model.digest]
        assert None in same, "a run began with a superseded model"

    @rule()
    def nobody_shows_up(self) -> None:
        """Requests that wait for clients say so once these have been away for longer than a lease."""
        for _ in range(2):
            self.world.advance(61)
            self.world.tick()
        state = self.world.state
        executing = [
            line for line in state.affected_cohorts.values() if state.erasures[line.erasure_id].status == "executing"
        ]
        for line in [line for line in executing if line.done_at is None]:
            round = state.rounds.get(state.cohorts[line.cohort_id].awaiting or line.cohort_id)
            has_waited = round is not None and (self.world.now - round.opened_at).total_seconds() > 61
            may_be_answered = any(t.status == "ready" for t in self.world.open_tasks(line.cohort_id))
            is_running = state.runs[line.run_id].status == "running"
            assert not (is_running and has_waited and may_be_answered), "waits for clients and does not say so"

    @precondition(lambda self: any(erasure.status == "verifying" for erasure in self.world.state.erasures.values()))
    @rule()
    def certificate_is_refused(self) -> None:
        world = self.world
        for job in [job for job in world.state.jobs.values() if job.kind == "purge" and job.status == "ready"]:
            erasure_id = UUID(job.params["erasure_id"])
            if world.erasure(erasure_id).status == "verifying":
                world.send(m.HoldErasure(erasure_id, job.id, world.erasure(erasure_id).version, "refused"))
                world.review()
                assert world.erasure(erasure_id).status == "requires_action", "tried again without a person"

    @precondition(lambda self: self.world.state.erasures)
    @rule()
    def a_removed_name_stays_erased(self) -> None:
        for client in self.world.state.clients.values():
            if client.status == "erased":
                self.world.send(m.RemoveClient(client.id))
                assert self.world.state.clients[client.id].status == "erased", "the tombstone is gone"
                is_late = client.needed_by is None
                own = (task for task in self.world.state.tasks.values() if task.client_id == client.id)
                if is_late and (task := next(own, None)):
                    begun = self.world.announce(of_json({"too late": client.name}), task)
                    _refused(self.world, begun, "uploaded after its fence")

    # --- progress -----------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.num_removed == 0)
    @rule(name=clients)
    def all_who_were_asked_leave(self, name: str) -> None:
        """Of a run that asks few; with at least one client left."""
        asked = {t.client_name for t in self.world.state.tasks.values() if t.status in OPEN_TASK} - {name}
        for leaving in sorted(asked):
            self.remove_client(leaving)

    @rule(order=st.permutations(CLIENTS), at_once=st.booleans())
    def whole_cohort_submits(self, order: list[str], at_once: bool) -> None:
        granted = [task for name in order for task in self._claim(name)]
        if at_once:
            self.world.send_together([self.world.answer_to(task) for task in granted])
        else:
            for task in granted:
                self._submit(task)

    @rule()
    def kernel_finishes(self) -> None:
        self.lease_kernel()
        if self.leases:
            self.finish_kernel(-1)

    @rule(order=st.permutations(CLIENTS), slow=st.none() | clients)
    def round_completes(self, order: list[str], slow: str | None) -> None:
        """Everybody answers, or everybody but one, and what can be computed is."""
        self.world.run_kernels()
        self.world.review()
        self.workers_write_their_ledgers(order)
        for name in order:
            tasks = self._claim(name)
            for task in tasks if name != slow else []:
                self._submit(task)
        self.world.run_kernels()

    @rule(order=st.permutations(CLIENTS))
    def everybody_works_for_a_while(self, order: list[str]) -> None:
        for _ in range(3):
            self.round_completes(order, slow=None)
            self.world.run_chores()

    @precondition(lambda self: len(self.world.state.erasures) < 5)
    @rule(order=st.permutations(CLIENTS), names=subjects, method=methods)
    def fence_falls_while_a_kernel_runs(self, order: list[str], names: list[str], method: str) -> None:
        self.whole_cohort_submits(order, at_once=False)
        self.lease_kernel()
        self.fence(names, method)
        self.two_pumps_take_the_same_kernel()
        for lease in range(-len(self.leases), 0):
            self.finish_kernel(lease)

    @rule()
    def everybody_fails(self) -> None:
        for task in [task for name in CLIENTS for task in self._claim(name)]:
            self.world.send(m.FailTask(task.id, task.client_id, task.lease_token or "", False, "no data"))

    def teardown(self) -> None:
        """With everybody cooperative and time passing, every run comes to an end and every request is carried out."""
        if not hasattr(self, "runs"):
            return
        world = self.world
        for _ in range(80):
            is_over = all(world.run(run_id).status in ENDED for run_id in self.runs)
            if is_over and all(erasure.status in SETTLED for erasure in world.state.erasures.values()):
                break
            for erasure_id in list(world.state.erasures):
                world.send_together([m.ApproveErasure(erasure_id, OFFICER)])
                world.send_together([m.RetryErasure(erasure_id)])
            for run_id in self.runs:
                world.send_together([m.ResumeRun(run_id)])
            self.workers_write_their_ledgers(list(CLIENTS))
            for name in CLIENTS:
                for task in self._claim(name):
                    self._submit(task)
            world.advance(61)
            world.tick()
            world.settle()
            self.every_law_holds()
        for run_id in self.runs:
            self._ended_well(run_id)
        for erasure in world.state.erasures.values():
            assert erasure.status in SETTLED, f"a request is stuck: {erasure}"

    def _ended_well(self, run_id: UUID) -> None:
        run, cohorts = self.world.run(run_id), self.world.cohorts(run_id).values()
        assert run.status in ENDED, f"a run is stuck: {cohorts}"
        if run.status == "failed":
            is_infeasible = "can no longer be formed" in (run.reason or "")
            assert self.may_fail or is_infeasible or not any(c.num_members for c in cohorts), "failed without a cause"
        if run.status == "completed":
            for cohort in (c for c in cohorts if c.kind != "merge" and c.num_members):
                assert cohort.round >= run.spec.stop.rounds + min(0, cohort.extra_rounds), "completed too early"


def _figures_of(digest: str) -> dict[str, float]:
    share = int(digest[-4:], 16) / 0xFFFF
    return {"accuracy": share, "loss": 1.0, "backdoor_success_rate": share, "backdoor_samples": 100.0}


def _refused(world: World, begun: Blob, law: str) -> None:
    """Somebody is about to finish an upload that must not be stored."""
    try:
        world.record(begun)
    except Rejected:
        return
    raise AssertionError(law)


def _pick(choices: list[Any], index: int) -> Any:
    """One of the list; negative: counted from its end."""
    return choices[-1 - (-1 - index) % len(choices)] if index < 0 else choices[index % len(choices)]
