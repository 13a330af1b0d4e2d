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

import sqlalchemy as sa
import structlog
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.bus.port import Bus
from coordinator.crashpoints import crashpoint
from coordinator.engine.decide import decide
from coordinator.engine.entities import State
from coordinator.engine.events import Event
from coordinator.engine.journal import Entry, entry
from coordinator.engine.messages import Envelope, Message
from coordinator.engine.react import FollowUp, Wake, erasure_key, react, run_key
from coordinator.engine.work import Refused
from coordinator.gathering import others_have_come
from coordinator.runtime.supervision import Pulse
from coordinator.store import tables
from coordinator.store.database import Database, TimedOut, Unavailable
from coordinator.store.prepared import prepared
from coordinator.store.rows import write_changes
from coordinator.store.slices import load
from services.core.errors import InvariantBroken, Rejected

log = structlog.get_logger()
MAX_BATCH = 64
ATTEMPTS = 4
ATTEMPTS_IN_TIME = 2
"""Of a transaction that the database gives up on because it takes too long."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a committed transaction says to the sender of one message."""

    reply: Any = None
    rejection: Rejected | None = None


@dataclass(frozen=True, slots=True)
class InboxKey:
    """Names a request that starts work, so that its repetition finds what the first one made."""

    principal: str
    route: str
    key: str
    fingerprint: str
    makes: UUID
    """The id of what the request creates when it is new."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """The request was carried out before; this is what it made then."""

    made: UUID


@dataclass(frozen=True, slots=True)
class _Letter:
    message: Message
    inbox_key: InboxKey | None
    waiting: asyncio.Future[Answer]


@dataclass(slots=True)
class _Work:
    """One transaction in the making."""

    state: State
    now: datetime
    events: list[tuple[Event, State]] = field(default_factory=list)
    follow_ups: deque[Message] = field(default_factory=deque)
    wakes: set[str] = field(default_factory=set)


class Shell:
    def __init__(
        self,
        database: Database,
        bus: Bus,
        entropy: Callable[[Message], bytes] = lambda message: os.urandom(16),
        observe: Callable[[Event], None] = lambda event: None,
    ) -> None:
        self._database = database
        self._bus = bus
        self._entropy = entropy
        self._observe = observe
        self._mailbox: deque[_Letter] = deque()
        self._bell = asyncio.Event()
        self._drainer: asyncio.Task[None] | None = None

    def start(self) -> None:
        """For experiments, which nobody supervises."""
        self._drainer = asyncio.create_task(self.forever(Pulse()))

    async def close(self) -> None:
        if self._drainer is not None:
            self._drainer.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._drainer
        _fail(self._mailbox, Unavailable("the coordinator is shutting down"))

    async def handle(self, message: Message, inbox_key: InboxKey | None = None) -> Any:
        """Decide one message; returns its reply after the commit.

        Raises `Rejected` (the sender is wrong), or `Unavailable` (the database is away; the message may or may not
        have been decided, and sending it again is safe). With an `inbox_key`, a repeated request gets `Replayed`.
        """
        waiting: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._mailbox.append(_Letter(message, inbox_key, waiting))
        self._bell.set()
        answer = await waiting
        if answer.rejection is not None:
            raise answer.rejection
        if isinstance(answer.reply, Refused):
            raise Rejected(answer.reply.code, answer.reply.detail)
        return answer.reply

    async def forever(self, pulse: Pulse) -> None:
        """Whoever waits for a message that was being decided when this ends is told to try again."""
        while True:
            while self._mailbox:
                await others_have_come()
                batch = [self._mailbox.popleft() for _ in range(min(MAX_BATCH, len(self._mailbox)))]
                try:
                    await self._settle(batch)
                finally:
                    _fail(batch, Unavailable("the coordinator was interrupted"))
                pulse.beat()
            await self._bell.wait()
            self._bell.clear()

    async def _settle(self, batch: Sequence[_Letter]) -> None:
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
        for letter, answer in zip(batch, answers, strict=True):
            if not letter.waiting.done():
                letter.waiting.set_result(answer)

    async def _transact(self, batch: Sequence[_Letter]) -> list[Answer]:
        """Decide messages in one transaction; tries again when another process got in between."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                async with self._database.write() as connection:
                    work, answers = await self._decide_all(connection, batch)
                    crashpoint("shell.before-commit")
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

    async def _decide_all(self, connection: AsyncConnection, batch: Sequence[_Letter]) -> tuple[_Work, list[Answer]]:
        now = await self._database.now(connection)
        work = _Work(await load(connection, [letter.message for letter in batch], State()), now)
        before = work.state
        answers = []
        for letter in batch:
            answer = await _answered_before(connection, letter.inbox_key)
            if answer is None:
                answer = self._decide_one(work, letter.message)
                if letter.inbox_key is not None and answer.rejection is None:
                    await _remember(connection, letter.inbox_key, now)
            answers.append(answer)
        await write_changes(connection, before, work.state)
        while work.follow_ups:
            messages = list(work.follow_ups)
            work.follow_ups.clear()
            before = work.state = await load(connection, messages, work.state)
            for message in messages:
                self._decide_one(work, message)
            await write_changes(connection, before, work.state)
        await self._write_journal(connection, work)
        return work, answers

    def _decide_one(self, work: _Work, message: Message) -> Answer:
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

    async def _write_erasure_log(self, connection: AsyncConnection, work: _Work, lines: list[Entry]) -> None:
        for line in lines:
            if line.erasure_id is None:
                continue
            row = {
                "erasure_id": line.erasure_id,
                "seq": await _next_in_log(connection, line.erasure_id),
                "at": work.now,
                "type": line.type,
                "data": line.data,
            }
            await connection.execute(tables.erasure_log.insert().values(row))
            work.wakes.add(erasure_key(line.erasure_id))

    async def _write_journal(self, connection: AsyncConnection, work: _Work) -> None:
        lines = [line for event, after in work.events if (line := entry(event, after)) is not None]
        await self._write_erasure_log(connection, work, [line for line in lines if line.erasure_id is not None])
        entries = [(line.run_id, line) for line in lines if line.run_id is not None]
        heads: dict[UUID, int] = {}
        for run_id in sorted({run_id for run_id, _ in entries}):
            count = sum(other == run_id for other, _ in entries)
            heads[run_id] = await _reserve(connection, run_id, count) - count
            work.wakes.add(run_key(run_id))
        rows = []
        for run_id, line in entries:
            heads[run_id] += 1
            rows.append(
                {
                    "run_id": run_id,
                    "seq": heads[run_id],
                    "cohort_id": line.cohort_id,
                    "at": work.now,
                    "type": line.type,
                    "data": line.data,
                }
            )
        if rows:
            await connection.execute(_WRITE, rows)


def _fail(letters: Iterable[_Letter], error: Exception) -> None:
    """Those that have no answer yet."""
    for letter in letters:
        if not letter.waiting.done():
            letter.waiting.set_exception(error)


async def _next_in_log(connection: AsyncConnection, erasure_id: UUID) -> int:
    """The request's row is locked by this transaction, so the number is taken."""
    log = tables.erasure_log
    last = await connection.execute(sa.select(sa.func.max(log.c.seq)).where(log.c.erasure_id == erasure_id))
    return int(last.scalar_one_or_none() or 0) + 1


_heads = tables.journal_heads
_BUMP = prepared(
    _heads.update()
    .where(_heads.c.run_id == sa.bindparam("run"))
    .values(seq=_heads.c.seq + sa.bindparam("count", type_=sa.Integer))
    .returning(_heads.c.seq)
)

_WRITE = prepared(tables.journal.insert())


async def _reserve(connection: AsyncConnection, run_id: UUID, count: int) -> int:
    """Take the next `count` journal numbers of a run; the row stays locked until the commit. Returns the last one."""
    last = (await connection.execute(_BUMP, {"run": run_id, "count": count})).scalar_one_or_none()
    if last is None:
        await connection.execute(tables.journal_heads.insert().values(run_id=run_id, seq=count))
        return count
    return int(last)


async def _answered_before(connection: AsyncConnection, key: InboxKey | None) -> Answer | None:
    if key is None:
        return None
    inbox = tables.inbox
    same = (inbox.c.principal == key.principal) & (inbox.c.route == key.route) & (inbox.c.key == key.key)
    row = (await connection.execute(inbox.select().where(same))).first()
    if row is None:
        return None
    if row.fingerprint != key.fingerprint:
        detail = "this Idempotency-Key was used with another body; use a new key for a new request"
        return Answer(rejection=Rejected("idempotency-key-reused", detail))
    return Answer(reply=Replayed(row.made))


async def _remember(connection: AsyncConnection, key: InboxKey, now: datetime) -> None:
    row = {
        "principal": key.principal,
        "route": key.route,
        "key": key.key,
        "fingerprint": key.fingerprint,
        "made": key.makes,
        "created_at": now,
    }
    await connection.execute(tables.inbox.insert().values(row))
