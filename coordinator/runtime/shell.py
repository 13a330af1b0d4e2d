"""The shell: messages in, one transaction, answers out.

Messages wait in one mailbox; whatever has gathered while the last transaction ran is decided in the next one, in order
of arrival, so that a busy coordinator commits once for many messages. A rejected message changes nothing and does
not disturb its neighbours. An answer is given only after the commit.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

import structlog
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.batching import yield_to_loop
from coordinator.bus.port import ACTS, Bus
from coordinator.crashpoints import crashpoint
from coordinator.engine.decide import decide
from coordinator.engine.entities import State
from coordinator.engine.events import Event
from coordinator.engine.journal import entry
from coordinator.engine.messages import Envelope, Message, Reply
from coordinator.engine.react import FollowUp, Wake, erasure_key, federation_key, react, run_key
from coordinator.engine.replies import Refused
from coordinator.runtime.supervision import WorkHealth
from coordinator.store import acts, inbox, journal
from coordinator.store.acts import SealedAct
from coordinator.store.database import Database, TimedOut, Unavailable
from coordinator.store.inbox import InboxKey
from coordinator.store.rows import write_changes
from coordinator.store.slices import load
from coordinator.store.warm import Known, Warm
from services.core.errors import InvariantBroken, Rejected

log = structlog.get_logger()
MAX_BATCH = 64
ATTEMPTS = 4
ATTEMPTS_IN_TIME = 2
"""Attempts at a transaction that the database gives up on because it takes too long."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a committed transaction says to the sender of one message."""

    reply: Any = None
    rejection: Rejected | None = None


@dataclass(frozen=True, slots=True)
class Replayed:
    """The request was carried out before; this is what it made then."""

    made: UUID


@dataclass(frozen=True, slots=True)
class _PendingMessage:
    message: Message[Any]
    inbox_key: InboxKey | None
    act: SealedAct | None
    waiting: asyncio.Future[Answer]


@dataclass(slots=True)
class _Work:
    """One transaction in the making."""

    state: State
    known: Known
    now: datetime
    events: list[tuple[Event, State]] = field(default_factory=list)
    follow_ups: deque[Message[Any]] = field(default_factory=deque)
    wakes: set[str] = field(default_factory=set)


class Shell:
    def __init__(
        self,
        database: Database,
        bus: Bus,
        entropy: Callable[[Message[Any]], bytes] = lambda message: os.urandom(16),
        observe: Callable[[Event], None] = lambda event: None,
    ) -> None:
        self._database = database
        self._bus = bus
        self._entropy = entropy
        self._observe = observe
        self._warm, self._generation = Warm(), database.generation
        self._mailbox: deque[_PendingMessage] = deque()
        self._bell = asyncio.Event()
        self._drainer: asyncio.Task[None] | None = None

    def start(self) -> None:
        """For experiments, which nobody supervises."""
        self._drainer = asyncio.create_task(self.forever(WorkHealth()))

    async def close(self) -> None:
        if self._drainer is not None:
            self._drainer.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._drainer
        _fail(self._mailbox, Unavailable("the coordinator is shutting down"))

    async def handle(self, message: Message[Reply], act: SealedAct | None = None) -> Reply:
        """Decide one message; returns its reply after the commit. `act`: who sent it, which is recorded with it.

        Raises `Rejected` (the sender is wrong), or `Unavailable` (the database is away; the message may or may not
        have been decided, and sending it again is safe).
        """
        reply: Reply = await self._answer(message, None, act)
        return reply

    async def handle_once(
        self, message: Message[Reply], inbox_key: InboxKey, act: SealedAct | None = None
    ) -> Reply | Replayed:
        """Like `handle`, for a request that may be repeated: whoever repeats it gets `Replayed`."""
        reply: Reply | Replayed = await self._answer(message, inbox_key, act)
        return reply

    async def _answer(self, message: Message[Any], inbox_key: InboxKey | None, act: SealedAct | None) -> Any:
        waiting: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._mailbox.append(_PendingMessage(message, inbox_key, act, waiting))
        self._bell.set()
        answer = await waiting
        if answer.rejection is not None:
            raise answer.rejection
        if isinstance(answer.reply, Refused):
            raise Rejected(answer.reply.code, answer.reply.detail)
        return answer.reply

    async def forever(self, health: WorkHealth) -> None:
        """Whoever waits for a message that was being decided when this ends is told to try again."""
        while True:
            while self._mailbox:
                await yield_to_loop()
                batch = [self._mailbox.popleft() for _ in range(min(MAX_BATCH, len(self._mailbox)))]
                try:
                    await self._settle(batch)
                finally:
                    _fail(batch, Unavailable("the coordinator was interrupted"))
                health.ok()
            await self._bell.wait()
            self._bell.clear()

    async def _settle(self, batch: Sequence[_PendingMessage]) -> None:
        try:
            answers = await self._transact(batch)
        except Exception as error:
            is_away = isinstance(error, Unavailable) and not isinstance(error, TimedOut)
            if len(batch) > 1 and not is_away:
                for one in batch:
                    await self._settle([one])
                return
            if not is_away and not isinstance(error, Rejected):
                log.error("message.broke", message=type(batch[0].message).__name__, exc_info=error)
            _fail(batch, error)
            return
        for pending, answer in zip(batch, answers, strict=True):
            if not pending.waiting.done():
                pending.waiting.set_result(answer)

    async def _transact(self, batch: Sequence[_PendingMessage]) -> list[Answer]:
        """Decide messages in one transaction; tries again when another process got in between."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                is_durable = any(one.act is not None or one.message.is_lasting for one in batch)
                async with self._database.write(is_durable=is_durable) as connection:
                    work, answers = await self._decide_all(connection, batch)
                    crashpoint("shell.before-commit")
                work.known.committed()
                crashpoint("shell.after-commit")
            except (Unavailable, IntegrityError) as error:
                if attempt == (ATTEMPTS_IN_TIME if isinstance(error, TimedOut) else ATTEMPTS):
                    raise
                log.warning("transaction.retried", attempt=attempt, error=str(error)[:300])
                await asyncio.sleep(0.05 * 2**attempt)
                continue
            self._tell(work)
            return answers
        raise InvariantBroken("unreachable")

    def _tell(self, work: _Work) -> None:
        """After the commit nothing may make it look as if there had been none."""
        try:
            self._bus.wake(work.wakes)
            for event, _ in work.events:
                self._observe(event)
        except Exception as error:
            log.error("commit.untold", exc_info=error)

    async def _decide_all(
        self, connection: AsyncConnection, batch: Sequence[_PendingMessage]
    ) -> tuple[_Work, list[Answer]]:
        now = await self._database.now(connection)
        if self._generation != self._database.generation:
            self._warm.clear()
            self._generation = self._database.generation
        known = Known(self._warm)
        work = _Work(await load(connection, [pending.message for pending in batch], known=known), known, now)
        before = work.state
        answers = [await self._decide_once(connection, work, pending) for pending in batch]
        await write_changes(connection, before, work.state, known)
        if done := [one.act for one, answer in zip(batch, answers, strict=True) if one.act and _is_new(answer)]:
            await acts.add(connection, done, now)
            work.wakes.add(ACTS)
        while work.follow_ups:
            messages = list(work.follow_ups)
            work.follow_ups.clear()
            before = work.state = await load(connection, messages, work.state, known)
            for message in messages:
                self._decide_one(work, message)
            await write_changes(connection, before, work.state, known)
        await known.renew_stamps(connection)
        entries = [found for event, after in work.events if (found := entry(event, after)) is not None]
        await journal.write(connection, entries, now)
        work.wakes.update(run_key(one.run_id) for one in entries if one.run_id is not None)
        work.wakes.update(erasure_key(one.erasure_id) for one in entries if one.erasure_id is not None)
        runs, erasures = work.state.rows("runs"), work.state.rows("erasures")
        concerned = (runs.get(one.run_id) or erasures.get(one.erasure_id) for one in entries)
        work.wakes.update(federation_key(one.federation_id) for one in concerned if one is not None)
        return work, answers

    async def _decide_once(self, connection: AsyncConnection, work: _Work, pending: _PendingMessage) -> Answer:
        """Decide a message unless a request with its key was carried out before."""
        key = pending.inbox_key
        if key is None:
            return self._decide_one(work, pending.message)
        try:
            made = await inbox.made_before(connection, key)
        except Rejected as rejection:
            return Answer(rejection=rejection)
        if made is not None:
            return Answer(reply=Replayed(made))
        answer = self._decide_one(work, pending.message)
        if answer.rejection is None:
            await inbox.remember(connection, key, work.now)
        return answer

    def _decide_one(self, work: _Work, message: Message[Any]) -> Answer:
        try:
            decision = decide(work.state, Envelope(message, work.now, self._entropy(message)))
        except Rejected as rejection:
            return Answer(rejection=rejection)
        work.state = decision.state
        for event in decision.events:
            work.events.append((event, decision.state))
            for command in react(event, decision.state):
                match command:
                    case FollowUp(message=follow_up):
                        work.follow_ups.append(follow_up)
                    case Wake(key=key):
                        work.wakes.add(key)
        return Answer(reply=decision.reply)


def _is_new(answer: Answer) -> bool:
    """Whether the message was decided now, and not refused or repeated."""
    return answer.rejection is None and not isinstance(answer.reply, Replayed | Refused)


def _fail(batch: Iterable[_PendingMessage], error: Exception) -> None:
    """Answer with the error whatever has no answer yet."""
    for pending in batch:
        if not pending.waiting.done():
            pending.waiting.set_exception(error)
