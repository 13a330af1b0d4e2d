"""`State`, the slice of the world that a message needs, with the figures that planning an erasure looks at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final
from uuid import UUID

from coordinator.engine.entities.erasure import AffectedCohort, Certificate, Delivery, Erasure, Exclusion, Subject
from coordinator.engine.entities.incentives import Federation, LedgerEntry, Measured, Period
from coordinator.engine.entities.storage import Blob, Facts, Job
from coordinator.engine.entities.training import (
    Checkpoint,
    Client,
    Cohort,
    Contribution,
    Member,
    Parent,
    Round,
    Run,
    Task,
    Update,
)
from services.core.errors import InvariantBroken
from services.wire.v1.people import FourEyes


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a cohort has cost so far, the leavers' part left out."""

    updates_per_round: float
    bytes_per_update: float
    """The bytes of a model to the client and of an update back."""


@dataclass(frozen=True, slots=True)
class Archive:
    """What is kept of the updates inside one model, the leavers' left out."""

    num_others: int
    num_stored: int
    weight: float
    """The weight of all its updates together, the leavers' included."""


Entity = (
    Client
    | Run
    | Cohort
    | Member
    | Round
    | Task
    | Update
    | Job
    | Checkpoint
    | Contribution
    | Parent
    | Erasure
    | Subject
    | Exclusion
    | AffectedCohort
    | Certificate
    | Delivery
    | Blob
    | Federation
    | Period
    | LedgerEntry
)


class TableNotLoaded(InvariantBroken):
    """A table was read that no need of the message loads."""

    def __init__(self, table: str, reader: str = "something") -> None:
        super().__init__(f"{reader} reads {table}, which was not loaded: state the need (engine/needs.py)")
        self.table = table


class NotLoaded(Mapping[Any, Any]):
    """A table that was not loaded. It may be written to, and what was written can be read back; whoever reads anything
    else has not stated a need."""

    __slots__ = ("rows", "table")

    def __init__(self, table: str, rows: Mapping[Any, Any]) -> None:
        self.table, self.rows = table, rows

    def __getitem__(self, key: Any) -> Any:
        if key in self.rows:
            return self.rows[key]
        raise TableNotLoaded(self.table)

    def __contains__(self, key: object) -> bool:
        return self[key] is not None

    def __iter__(self) -> Iterator[Any]:
        raise TableNotLoaded(self.table)

    def __len__(self) -> int:
        raise TableNotLoaded(self.table)

    def __or__(self, rows: Mapping[Any, Any]) -> NotLoaded:
        return NotLoaded(self.table, {**self.rows, **rows})


class RememberingTable(dict[Any, Any]):
    """A table that is kept from one message to the next, with what was found out about all of it: there may be a
    million members, and each round asks who they are. A change of a row ends that."""

    __slots__ = ("found_out",)

    def __init__(self, rows: Mapping[Any, Any] | None = None) -> None:
        super().__init__(rows or {})
        self.found_out: dict[Any, Any] = {}

    def __setitem__(self, key: Any, row: Any) -> None:
        super().__setitem__(key, row)
        self.found_out = {}


@dataclass(frozen=True)
class State:
    """The slice of the world that a message needs. `put` returns a changed copy; the store writes what changed.

    `State()` is a world without anything in it, all of which is known. What the store loads begins with
    `NOTHING_LOADED`, where every table raises `TableNotLoaded` until it is loaded.
    """

    clients: Mapping[UUID, Client] = field(default_factory=dict)
    runs: Mapping[UUID, Run] = field(default_factory=dict)
    cohorts: Mapping[UUID, Cohort] = field(default_factory=dict)
    members: Mapping[tuple[UUID, UUID], Member] = field(default_factory=dict)
    rounds: Mapping[UUID, Round] = field(default_factory=dict)
    tasks: Mapping[UUID, Task] = field(default_factory=dict)
    updates: Mapping[UUID, Update] = field(default_factory=dict)
    jobs: Mapping[UUID, Job] = field(default_factory=dict)
    checkpoints: Mapping[UUID, Checkpoint] = field(default_factory=dict)
    contributions: Mapping[tuple[UUID, UUID], Contribution] = field(default_factory=dict)
    parents: Mapping[tuple[UUID, UUID], Parent] = field(default_factory=dict)
    erasures: Mapping[UUID, Erasure] = field(default_factory=dict)
    subjects: Mapping[tuple[UUID, UUID], Subject] = field(default_factory=dict)
    exclusions: Mapping[tuple[UUID, UUID], Exclusion] = field(default_factory=dict)
    affected_cohorts: Mapping[tuple[UUID, UUID], AffectedCohort] = field(default_factory=dict)
    certificates: Mapping[UUID, Certificate] = field(default_factory=dict)
    deliveries: Mapping[UUID, Delivery] = field(default_factory=dict)
    samples: Mapping[tuple[UUID, UUID], int] = field(default_factory=dict)
    """(cohort, client): the number of samples that the client last reported there; loaded where models are merged."""
    traffic: Mapping[UUID, Traffic] = field(default_factory=dict)
    """What each cohort has cost, where an erasure is planned; one that never published an aggregate is left out."""
    archives: Mapping[UUID, Archive] = field(default_factory=dict)
    """What is kept of each checkpoint, where an erasure is planned; models without contributions are left out."""
    kept: Mapping[UUID, frozenset[str]] = field(default_factory=dict)
    """Which copies of each update are kept, as it was added to models, where a method looks them up."""
    blobs: Mapping[UUID, Blob] = field(default_factory=dict)
    facts: Mapping[tuple[UUID, str], Facts] = field(default_factory=dict)
    """What is known of stored bytes, whoever they are from, by federation and digest."""
    superseded: Mapping[tuple[UUID, str], bool] = field(default_factory=dict)
    """(federation, digest) of models that an erasure superseded, among those that are about to be stored or used."""
    federations: Mapping[UUID, Federation] = field(default_factory=dict)
    """Federations that divide their clients among jobs, and those that are changed."""
    four_eyes: Mapping[UUID, FourEyes] = field(default_factory=dict)
    """The rule of each federation in which a request is filed; one that demands nothing may be left out."""
    periods: Mapping[tuple[UUID, int], Period] = field(default_factory=dict)
    ledger: Mapping[UUID, LedgerEntry] = field(default_factory=dict)
    measures: Mapping[UUID, Measured] = field(default_factory=dict)
    """Measures of each client, where a period begins."""

    def put(self, *entities: Entity) -> State:
        return self.put_all(entities)

    def put_all(self, entities: Iterable[Entity]) -> State:
        changed: dict[str, dict[Any, Entity]] = {}
        for entity in entities:
            changed.setdefault(entity.table, {})[entity.key] = entity
        return self.with_rows(changed)

    def with_rows(self, changed: Mapping[str, Mapping[Any, Any]]) -> State:
        return self.updated({name: getattr(self, name) | rows for name, rows in changed.items()})

    def updated(self, tables: Mapping[str, Any]) -> State:
        """A copy with other tables in it, in a tenth of the time that `dataclasses.replace` takes: every event does."""
        copy = object.__new__(State)
        vars(copy).update(vars(self), **tables)
        return copy

    def with_loaded(self, tables: Iterable[str]) -> State:
        """A copy in which these tables can be read: what is in them is all there is to see."""
        missing = [(name, found) for name in tables if isinstance(found := getattr(self, name), NotLoaded)]
        return self.updated({name: found.rows for name, found in missing})

    def rows(self, table: str) -> Mapping[Any, Any]:
        """The rows of a table that are known, whether or not it was loaded."""
        found: Mapping[Any, Any] = getattr(self, table)
        return found.rows if isinstance(found, NotLoaded) else found


NOTHING_LOADED: Final = State().updated({one.name: NotLoaded(one.name, {}) for one in fields(State)})
