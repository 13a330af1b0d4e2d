"""The log of acts: who did what, when and from where.

An act is sealed before the transaction of what it tells of, and its row commits with that. Afterwards rows are linked
to the chain of their federation, whose head is signed and noted in the directory of evidence as well: a database that
was put back, or whose rows were changed, does not go together with it, and the log says so from then on.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final, TypeVar
from uuid import UUID, uuid4

import structlog
from pydantic import ValidationError
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.bus.port import ACTS, Bus
from coordinator.keys.port import KeyName, client_key, federation_key
from coordinator.runtime.blob_sealer import BlobSealer
from coordinator.runtime.evidence import TROUBLE, described
from coordinator.runtime.signing import SigningKeys
from coordinator.runtime.supervision import WorkHealth
from coordinator.runtime.transactions import transact
from coordinator.store import acts
from coordinator.store.acts import Chain, SealedAct, SealedPart, StoredAct
from coordinator.store.database import Database, Unavailable
from services.audit.acts import ActsInvalid, beginning, commitment, digest_of, read_head, sign_head
from services.core import private_files
from services.sealing.notes import open_note, seal_note
from services.sealing.segments import Unreadable
from services.wire.v1.acts import ActAbout, ActEntry, ActGap, ActsHead, ActWords, RecordedAct, Says

log = structlog.get_logger()
LOOK_EVERY_S: Final = 5.0
LOOK_AGAIN_S: Final = 1.0
PRUNE_EVERY_S: Final = 600.0
LINKED_AT_ONCE: Final = 500
SALT_BYTES: Final = 32
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Actor:
    """Who does it: `name` is the label of a credential, or a client's name; `address` where the request came from."""

    role: str
    name: str
    credential_id: UUID
    client_id: UUID | None
    address: str
    person: str | None = None
    """Who signed in with OpenID Connect."""


@dataclass(frozen=True, slots=True)
class Act:
    """`whom`: names of the clients that it is about, by their ids. `words`: what was written with it, which belongs to
    these clients if there are any."""

    name: str
    federation_id: UUID
    actor: Actor
    about: ActAbout | None = None
    whom: Mapping[UUID, str] = field(default_factory=dict)
    words: str | None = None


class Acts:
    def __init__(
        self, database: Database, bus: Bus, sealing: BlobSealer, keys: SigningKeys, kept_for: timedelta | None = None
    ) -> None:
        self._database, self._bus, self._sealing, self._keys = database, bus, sealing, keys
        self._kept_for, self._heads = kept_for, SignedHeads(keys.directory / "acts")
        self._pruned_at = -PRUNE_EVERY_S

    # what is written and read

    async def sealed(self, act: Act) -> SealedAct:
        """The act, sealed, to be written together with what it tells of."""
        actor, act_id = act.actor, uuid4()
        own = client_key(actor.client_id) if actor.client_id is not None else federation_key(act.federation_id)
        who = {"name": actor.name, "credential": str(actor.credential_id), "from": actor.address}
        who |= {"person": actor.person} if actor.person is not None else {}
        said: list[tuple[Says, list[KeyName], dict[str, str]]] = [("who", [own], who)]
        for client_id, name in act.whom.items():
            said.append(("whom", [client_key(client_id)], {"client": str(client_id), "name": name}))
        if act.words is not None:
            said.append(("words", [client_key(client_id) for client_id in act.whom] or [own], {"text": act.words}))
        parts = [await self._part(act_id, place, *one) for place, one in enumerate(said)]
        return SealedAct(act_id, act.federation_id, act.name, actor.role, act.about, tuple(parts))

    async def recorded(self, act: Act, work: Callable[[AsyncConnection, datetime], Awaitable[T]]) -> T:
        """One transaction, in which `work` is done at its instant and the act is recorded."""
        sealed = await self.sealed(act)

        async def both(connection: AsyncConnection) -> T:
            now = await self._database.now(connection)
            done = await work(connection, now)
            await acts.add(connection, [sealed], now)
            return done

        done = await transact(self._database, both)
        self._bus.wake([ACTS])
        return done

    async def _part(
        self, act_id: UUID, place: int, says: Says, names: list[KeyName], content: dict[str, str]
    ) -> SealedPart:
        """Without its content where one of the keys is gone: nobody who was erased is named again."""
        words = ActWords(salt=os.urandom(SALT_BYTES).hex(), content=content)
        keys = [await self._sealing.owners_key(name) for name in names]
        sealed = None
        if all(keys):
            note = seal_note([key for key in keys if key is not None], words.model_dump_json().encode(), act_id, place)
            sealed = base64.b64encode(note).decode()
        return SealedPart(says, commitment(words), names, sealed)

    async def record(self, act: SealedAct) -> datetime:
        """Write an act that changes nothing else; returns its instant."""

        async def add(connection: AsyncConnection) -> datetime:
            now = await self._database.now(connection)
            await acts.add(connection, [act], now)
            return now

        now = await transact(self._database, add)
        self._bus.wake([ACTS])
        return now

    def opened(self, stored: Sequence[StoredAct]) -> list[RecordedAct]:
        """With what can still be read of each. Blocks on the disk."""
        return [
            RecordedAct(
                entry=act.entry, opened=[self._words(act.entry, place, part) for place, part in enumerate(act.parts)]
            )
            for act in stored
        ]

    def _words(self, entry: ActEntry, place: int, part: SealedPart) -> ActWords | None:
        keys = [key for name in part.keys if (key := self._sealing.keys.find(name)) is not None]
        if part.sealed is None or len(keys) < len(part.keys):
            return None
        try:
            return ActWords.model_validate_json(open_note(keys, base64.b64decode(part.sealed), entry.id, place))
        except (Unreadable, ValidationError):
            return None

    # the chain

    async def forever(self, pulse: WorkHealth) -> None:
        is_first = True
        with self._bus.waiter(ACTS) as waiter:
            while True:
                try:
                    await self.tend(everybody=is_first)
                    is_first = False
                    pulse.ok()
                except Unavailable:
                    pulse.waits("the database cannot serve")
                except TROUBLE as error:
                    pulse.waits(described(error))
                await waiter.wait(LOOK_EVERY_S if pulse.problem is None else LOOK_AGAIN_S)

    async def tend(self, *, everybody: bool = False) -> None:
        """Link what is not linked, prune what is old, sign what is not signed. `everybody`: also compare the chains to
        which nothing is to be linked with the heads that were signed."""
        async with self._database.read() as connection:
            waiting = set(await acts.to_link(connection))
            known = await acts.chains(connection)
        if everybody:
            waiting |= {chain.federation_id for chain in known}
        for federation_id in sorted(waiting):
            await self._alone(federation_id, self._link(federation_id))
        if self._kept_for is not None and time.monotonic() - self._pruned_at >= PRUNE_EVERY_S:
            await self.prune(self._kept_for)
            self._pruned_at = time.monotonic()
        async with self._database.read() as connection:
            unsigned = [chain for chain in await acts.chains(connection) if not _is_signed(chain)]
        for chain in unsigned:
            await self._alone(chain.federation_id, self._sign(chain))

    async def _alone(self, federation_id: UUID, step: Awaitable[None]) -> None:
        """One log that breaks does not hold up the others."""
        try:
            await step
        except (Unavailable, *TROUBLE):
            raise
        except Exception as error:
            log.error("acts.not-tended", federation=str(federation_id), exc_info=error)

    async def _link(self, federation_id: UUID) -> None:
        while await self._link_some(federation_id):
            pass

    async def _link_some(self, federation_id: UUID) -> bool:
        """Whether there may be more to link."""
        signed = await asyncio.to_thread(self._heads.read, federation_id)
        start = beginning(federation_id)

        async def link(connection: AsyncConnection) -> int:
            now = await self._database.now(connection)
            chain = await acts.locked_chain(connection, Chain(federation_id, 0, start, 1, start, None))
            found = chain
            if signed is not None and await acts.digest_at(connection, chain, signed.seq) != signed.digest:
                chain = await _tell_of_gap(connection, chain, signed, now)
            waiting = await acts.unlinked(connection, federation_id, LINKED_AT_ONCE)
            for act in waiting:
                chain = await _linked(connection, chain, act.entry)
            if chain != found:
                await acts.move_chain(connection, chain)
            return len(waiting)

        return await transact(self._database, link) == LINKED_AT_ONCE

    async def _sign(self, chain: Chain) -> None:
        key = await asyncio.to_thread(self._keys.load)
        async with self._database.read() as connection:
            now = await self._database.now(connection)
        head = ActsHead(
            federation=chain.federation_id,
            at=now,
            kept_from=chain.kept_from,
            before=chain.before,
            seq=chain.seq,
            digest=chain.digest,
        )
        line = sign_head(head, key)
        await asyncio.to_thread(self._heads.write, chain.federation_id, line)
        await transact(self._database, lambda connection: acts.note_head(connection, chain, line.decode()))

    async def prune(self, kept_for: timedelta) -> int:
        """Drop what is older, behind heads that were signed; returns how many acts."""
        num_pruned = 0
        async with self._database.read() as connection:
            known = await acts.chains(connection)
            oldest = await self._database.now(connection) - kept_for
        for one in known:
            num_pruned += await transact(self._database, partial(_prune, known=one, oldest=oldest))
        return num_pruned


async def _prune(connection: AsyncConnection, known: Chain, oldest: datetime) -> int:
    chain = await acts.locked_chain(connection, known)
    last, head = await acts.newest_before(connection, chain.federation_id, oldest), _head_of(chain)
    if last is None or head is None or not chain.kept_from <= last[0] <= head.seq:
        return 0
    num_pruned = await acts.prune(connection, chain.federation_id, last[0])
    await acts.move_chain(connection, replace(chain, kept_from=last[0] + 1, before=last[1]))
    return num_pruned


async def _linked(connection: AsyncConnection, chain: Chain, entry: ActEntry) -> Chain:
    entry = entry.model_copy(update={"seq": chain.seq + 1})
    digest = digest_of(entry, chain.digest)
    await acts.link(connection, entry, digest)
    return replace(chain, seq=entry.seq, digest=digest)


async def _tell_of_gap(connection: AsyncConnection, chain: Chain, signed: ActsHead, now: datetime) -> Chain:
    """The head that was signed is not on this chain: the database was put back, or rows were changed. The chain goes on
    from what was signed, with an entry that says so."""
    last = max(signed.seq, chain.seq)
    log.error("acts.interrupted", federation=str(chain.federation_id), known=chain.seq, signed=signed.seq)
    gap = ActGap(first=chain.seq + 1, last=last, before=chain.digest, after=signed.digest)
    told = SealedAct(uuid4(), chain.federation_id, "log.interrupted", "coordinator", None, ())
    await acts.add(connection, [told], now)
    entry = ActEntry(
        federation=chain.federation_id, seq=1, id=told.id, at=now, act=told.act, role="coordinator", parts=[], gap=gap
    )
    return await _linked(connection, replace(chain, seq=last, digest=signed.digest), entry)


def _is_signed(chain: Chain) -> bool:
    head = _head_of(chain)
    stands = (chain.seq, chain.digest, chain.kept_from)
    return chain.seq == 0 or (head is not None and (head.seq, head.digest, head.kept_from) == stands)


def _head_of(chain: Chain) -> ActsHead | None:
    """None: nothing is signed yet, or what the row has is damaged, and is signed again."""
    try:
        return read_head(chain.head.encode()) if chain.head is not None else None
    except ActsInvalid:
        return None


class SignedHeads:
    """The newest signed head of each federation, in the directory of evidence. Methods block on the disk."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def read(self, federation_id: UUID) -> ActsHead | None:
        """None: there is none, or it is damaged; then the database's own is all there is."""
        try:
            return read_head(self._path(federation_id).read_bytes())
        except FileNotFoundError:
            return None
        except ActsInvalid as error:
            log.error("acts.head-damaged", federation=str(federation_id), error=str(error))
            return None

    def write(self, federation_id: UUID, line: bytes) -> None:
        """Durable, all or nothing."""
        private_files.make_directory(self._directory)
        part = self._directory / f".{federation_id}-{os.getpid()}"
        try:
            with private_files.create(part) as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
            part.replace(self._path(federation_id))
        finally:
            with contextlib.suppress(FileNotFoundError):
                part.unlink()
        fd = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def _path(self, federation_id: UUID) -> Path:
        return self._directory / f"{federation_id}.json"
