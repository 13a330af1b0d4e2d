"""The clients of an experiment: they claim, work for as long as was drawn, hand in, and claim again.

An agent has in hand what one claim brought, and works on it one task after the other; work that is no longer wanted is
dropped at once. When a task ends is settled when it is claimed, by names that are stable over restarts.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Iterable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from coordinator.engine import events as e
from coordinator.engine.entities import Task
from coordinator.engine.messages import AcknowledgeExclusions, FailTask, RenewLease, SubmitResult
from coordinator.engine.replies import Granted
from coordinator.runtime.task_claims import grant_of
from coordinator.store import exclusions, experiment_queries
from lethe.simulation.clock import virtual_s, whole
from lethe.simulation.coordinator import SimulatedCoordinator
from lethe.simulation.scenario import Scenario
from lethe.simulation.training import Batch, Outcome, Piece, Trainer, carry_out_there
from services.core.errors import InvariantBroken, Rejected
from services.simulation.durations import draw
from services.simulation.event_queue import EventQueue
from services.wire.v1.work import Failure
from worker.exclusion import unknown_of
from worker.execution import Result

SHORTEST_S: Final = 1e-6
RENEWED_AFTER: Final = 2 / 3
"""The share of a lease after which it is renewed."""


@dataclass(frozen=True)
class InHand:
    """A task that an agent works on."""

    piece: Piece
    task: Task
    name: str
    ends_s: float
    seconds: float
    together: tuple[str, ...]
    """What tasks have in common that may be computed together."""


class Agents:
    def __init__(
        self,
        coordinator: SimulatedCoordinator,
        scenario: Scenario,
        trainer: Trainer,
        pool: Executor | None,
        event_queue: EventQueue[str],
    ):
        self._coordinator, self._scenario, self._trainer, self._pool = coordinator, scenario, trainer, pool
        self._event_queue = event_queue
        self._in_hand: dict[UUID, InHand] = {}
        self._by_name: dict[str, UUID] = {}
        self._of_client: dict[str, set[UUID]] = {}
        self._rung: set[str] = set()
        self._left_out: dict[str, frozenset[int]] = {}
        self._groups: dict[tuple[str, ...], list[tuple[UUID, Piece]]] = {}
        self._outcomes: dict[UUID, Future[Outcome]] = {}
        coordinator.observers.append(self._notice)

    async def resume(self) -> None:
        """Take up what an earlier life of this process had in hand: it ends when it would have ended then."""
        async with self._coordinator.database.read() as connection:
            found = await experiment_queries.claimed_together(connection)
        for client in sorted({one.task.client_name for one in found if one.exclusions is not None}):
            await self._read_exclusions(client)
        claims: dict[tuple[str, float], list[Granted]] = {}
        for one in found:
            claims.setdefault((one.task.client_name, _claimed_s(one)), []).append(one)
        for (client, _), granted in sorted(claims.items()):
            self._begin_claimed(client, granted)

    # claiming

    def ring(self, names: Iterable[str]) -> None:
        self._rung.update(names)

    async def claim(self) -> bool:
        """Let everybody claim who was rung for and has nothing in hand; whether there was anybody."""
        names = sorted(name for name in self._rung if not self._of_client.get(name))
        self._rung.difference_update(names)
        granted = await asyncio.gather(*map(self._claim, names))
        for name, tasks in zip(names, granted, strict=True):
            self._begin_claimed(name, tasks)
        return bool(names)

    async def _claim(self, client: str) -> list[Granted]:
        claim, client_id = self._coordinator.task_claims.claim, self._coordinator.client_ids[client]
        try:
            return list(await claim(client_id))
        except Rejected as rejected:
            if rejected.code != "ledger-behind":  # it was erased or removed
                return []
        await self._leave_out(client)
        return list(await claim(client_id))

    async def _leave_out(self, client: str) -> None:
        digest, unknown = await self._read_exclusions(client)
        await self._coordinator.shell.handle(
            AcknowledgeExclusions(self._coordinator.client_ids[client], digest, unknown)
        )

    async def _read_exclusions(self, client: str) -> tuple[str, dict[UUID, list[int]]]:
        async with self._coordinator.database.read() as connection:
            stated = await exclusions.of_client(connection, self._coordinator.client_ids[client])
        if stated.digest is None:
            raise InvariantBroken(f"{client} is to leave nothing out")
        self._left_out[client] = frozenset(sample for item in stated.items for sample in item.samples)
        unknown = unknown_of(stated, self._trainer.data.unknown(client, self._left_out[client]))
        return stated.digest, {one.erasure_id: one.samples for one in unknown}

    def _begin_claimed(self, client: str, granted: list[Granted]) -> None:
        """Everything of one claim, in a stable order. What was finished already only counts for the time it took."""
        ends_s = -math.inf
        for one in sorted(granted, key=lambda one: (one.cohort.name, one.task.kind, one.task.round)):
            task, grant = one.task, grant_of(one if one.task.status == "leased" else _with_lease(one))
            ends_s = max(ends_s, _claimed_s(one))
            work = f"{one.cohort.name}/{task.round}/{task.kind}"
            drawn = draw(self._scenario.durations, self._scenario.seed, client, work)
            ends_s = whole(ends_s + max(SHORTEST_S, drawn))
            piece = Piece(client, grant, self._left_out.get(client, frozenset()))
            together = (str(task.round_id), str(task.leased_at), task.model_digest, task.kind, str(grant.local))
            if self._is_stacked(piece):
                self._groups.setdefault(together, []).append((task.id, piece))
            if task.status == "leased":
                in_hand = InHand(piece, task, f"{client}/{work}", ends_s, whole(drawn), together)
                self._hold(task.id, in_hand)

    def _hold(self, task_id: UUID, in_hand: InHand) -> None:
        self._in_hand[task_id] = in_hand
        self._by_name[in_hand.name] = task_id
        self._of_client.setdefault(in_hand.piece.client, set()).add(task_id)
        self._event_queue.put(max(self._event_queue.now, in_hand.ends_s), f"task/{in_hand.name}", "task")
        self._plan_renewal(in_hand)

    def _plan_renewal(self, in_hand: InHand) -> None:
        lease_s = self._scenario.run.lease_s
        at = whole(virtual_s(in_hand.piece.grant.lease_expires_at) - (1 - RENEWED_AFTER) * lease_s)
        if at < in_hand.ends_s:
            self._event_queue.put(max(self._event_queue.now, at), f"lease/{in_hand.name}", "lease")

    async def renew(self, name: str) -> None:
        task_id = self._by_name[name]
        in_hand = self._in_hand[task_id]
        grant = in_hand.piece.grant
        renewed = await self._coordinator.shell.handle(RenewLease(task_id, in_hand.task.client_id, grant.lease_token))
        grant = grant.model_copy(update={"lease_expires_at": renewed.until})
        self._in_hand[task_id] = replace(in_hand, piece=replace(in_hand.piece, grant=grant))
        self._plan_renewal(self._in_hand[task_id])

    # letting go

    def _notice(self, event: e.Event) -> None:
        """Work that is not wanted any more is dropped."""
        match event:
            case e.TasksRevoked(task_ids=task_ids):
                for task_id in task_ids:
                    self._drop(task_id)
            case e.TaskWithdrawn(task_id=task_id) | e.TaskReleased(task_id=task_id):
                self._drop(task_id)

    def _drop(self, task_id: UUID) -> None:
        in_hand = self._in_hand.pop(task_id, None)
        if in_hand is None:
            return
        del self._by_name[in_hand.name]
        self._of_client[in_hand.piece.client].discard(task_id)
        self._event_queue.drop(f"task/{in_hand.name}")
        self._event_queue.drop(f"lease/{in_hand.name}")
        if (outcome := self._outcomes.pop(task_id, None)) is not None:
            outcome.add_done_callback(_discard)

    # working

    def _is_stacked(self, piece: Piece) -> bool:
        return self._scenario.training.path == "stacked" and piece.grant.kind == "train"

    async def begin_all(self) -> None:
        """Let other processes compute what was claimed. Nobody claims at this instant any more, so groups are whole."""
        if self._pool is not None:
            for task_id in sorted(self._in_hand.keys() - self._outcomes.keys(), key=lambda x: self._in_hand[x].name):
                if task_id not in self._outcomes:
                    await self._begin(task_id)

    async def _begin(self, task_id: UUID) -> None:
        """Start the batch that the task belongs to."""
        in_hand = self._in_hand[task_id]
        alone = [(task_id, in_hand.piece)]
        members = self._groups.pop(in_hand.together, alone) if self._is_stacked(in_hand.piece) else alone
        members = sorted(members, key=lambda member: member[1].client)
        size = self._scenario.training.group_size
        for batch in (members[first : first + size] for first in range(0, len(members), size)):
            if any(task_id in self._in_hand for task_id, _ in batch):
                await self._compute(batch)

    async def _compute(self, members: list[tuple[UUID, Piece]]) -> None:
        pieces = tuple(piece for _, piece in members)
        wanted = {
            digest for p in pieces for digest in (p.grant.weights, *(p.grant.work.blobs() if p.grant.work else ()))
        }
        batch = Batch(pieces, await self._coordinator.fetch(sorted(wanted)))
        if self._pool is None:
            computed: Future[list[Outcome]] = Future()
            computed.set_result(self._trainer.carry_out(batch))
        else:
            computed = self._pool.submit(carry_out_there, batch)
        for position, (task_id, _) in enumerate(members):
            outcome = _one_of(computed, position)
            if task_id in self._in_hand:
                self._outcomes[task_id] = outcome
            else:
                outcome.add_done_callback(_discard)

    async def finish(self, names: list[str]) -> None:
        """These tasks end now: hand their results in."""
        ended = [(task_id, self._in_hand[task_id]) for task_id in map(self._by_name.__getitem__, sorted(names))]
        outcomes: list[Outcome] = []
        for task_id, _ in ended:
            if task_id not in self._outcomes:
                await self._begin(task_id)
            outcomes.append(await asyncio.wrap_future(self._outcomes.pop(task_id)))
        for task_id, _ in ended:
            self._drop(task_id)
        results = [(in_hand, outcome) for (_, in_hand), outcome in zip(ended, outcomes, strict=True)]
        sent = [(r.update, in_hand.task) for in_hand, r in results if isinstance(r, Result) and r.update is not None]
        await _unless_refused(self._coordinator.receive(update, task) for update, task in sent)
        answers = (_answer(in_hand, outcome) for in_hand, outcome in results)  # in the order of their names
        await _unless_refused(map(self._coordinator.shell.handle, answers))


async def _unless_refused(asked: Iterable[Awaitable[object]]) -> None:
    """Ask for all of this together. What is refused is not wanted any more."""
    for answer in await asyncio.gather(*asked, return_exceptions=True):
        if isinstance(answer, BaseException) and not isinstance(answer, Rejected):
            raise answer


def _answer(in_hand: InHand, outcome: Outcome) -> SubmitResult | FailTask:
    grant, client_id = in_hand.piece.grant, in_hand.task.client_id
    token = grant.lease_token
    if isinstance(outcome, Failure):
        return FailTask(grant.task_id, client_id, token, outcome.retryable, outcome.reason, outcome.log_tail)
    digest = None if outcome.update is None else outcome.update.digest
    metrics = {**outcome.metrics, "seconds": in_hand.seconds}
    return SubmitResult(grant.task_id, client_id, token, digest, outcome.num_samples, metrics)


def _claimed_s(granted: Granted) -> float:
    if granted.task.leased_at is None:
        raise InvariantBroken(f"task {granted.task.id} was never handed out")
    return virtual_s(granted.task.leased_at)


def _with_lease(granted: Granted) -> Granted:
    """A task that is done has no lease any more; what it was computed from is asked for all the same."""
    task = replace(granted.task, due_at=granted.task.leased_at, lease_token=granted.task.lease_token or "")
    return replace(granted, task=task)


def _one_of(computed: Future[list[Outcome]], position: int) -> Future[Outcome]:
    one: Future[Outcome] = Future()

    def settle(done: Future[list[Outcome]]) -> None:
        if (error := done.exception()) is not None:
            one.set_exception(error)
        else:
            one.set_result(done.result()[position])

    computed.add_done_callback(settle)
    return one


def _discard(outcome: Future[Outcome]) -> None:
    if not outcome.cancelled() and outcome.exception() is None:
        result = outcome.result()
        if not isinstance(result, Failure) and result.update is not None:
            result.update.path.unlink(missing_ok=True)
