"""A slice that is being loaded: what is known so far, and the ways to add to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.engine.entities import Client, Cohort, Entity, Erasure, Job, Round, Run, State, Subject, Task
from coordinator.engine.needs import Needs
from coordinator.store.rows import fetch, fetch_by, listed, to_entity
from coordinator.store.warm import Known, WarmCohort

E = TypeVar("E", bound=Entity)


@dataclass(slots=True)
class Loading:
    """Adding to a table that no need of the messages loads raises `TableNotLoaded`."""

    connection: AsyncConnection
    needs: Needs
    state: State
    known: Known = field(default_factory=Known)
    whole: set[UUID] = field(default_factory=set)
    """Runs whose lineage and membership are needed completely."""
    mended: set[UUID] = field(default_factory=set)
    """Runs in which models that a method made may have to be given up, with what stands on them."""

    async def add(self, kind: type[E], *where: sa.ColumnElement[bool], lock: bool = False) -> list[E]:
        return self.merge(kind, await fetch(self.connection, kind, *where, lock=lock))

    async def add_by(self, kind: type[E], column: sa.Column[Any], keys: Iterable[Any], lock: bool = False) -> list[E]:
        return self.merge(kind, await fetch_by(self.connection, kind, column, keys, lock))

    async def add_found(self, kind: type[E], statement: sa.Select[Any], keys: Iterable[Any]) -> list[E]:
        rows = await self.connection.execute(statement, {"keys": listed(keys)})
        return self.merge(kind, [to_entity(kind, row) for row in rows])

    def merge(self, kind: type[E], found: list[E]) -> list[E]:
        """Records already known win: they may carry changes not yet written."""
        len(getattr(self.state, kind.table))  # raises when it was not loaded, also if nothing was found
        self.add_table(kind.table, {entity.key: entity for entity in found})
        return found

    def add_table(self, table: str, rows: dict[Any, Any]) -> None:
        """Like `merge`. A whole table is not copied when nothing of it was known: there may be very many members."""
        if rows and rows is not (known := getattr(self.state, table)):
            self.state = self.state.updated({table: {**rows, **known} if len(known) else rows})

    def note(self, found: Mapping[str, Mapping[Any, Any]]) -> None:
        self.state = self.state.with_rows(found)

    def cohorts_of(self, run_ids: set[UUID]) -> set[UUID]:
        return {c.id for c in self.cohorts.values() if c.run_id in run_ids}

    @property
    def warm(self) -> Mapping[UUID, WarmCohort]:
        """What is known of the cohorts that are locked."""
        return self.known.cohorts

    # What is known so far, also of tables that are not loaded.

    @property
    def runs(self) -> Mapping[UUID, Run]:
        return self.state.rows("runs")

    @property
    def cohorts(self) -> Mapping[UUID, Cohort]:
        return self.state.rows("cohorts")

    @property
    def rounds(self) -> Mapping[UUID, Round]:
        return self.state.rows("rounds")

    @property
    def tasks(self) -> Mapping[UUID, Task]:
        return self.state.rows("tasks")

    @property
    def jobs(self) -> Mapping[UUID, Job]:
        return self.state.rows("jobs")

    @property
    def clients(self) -> Mapping[UUID, Client]:
        return self.state.rows("clients")

    @property
    def erasures(self) -> Mapping[UUID, Erasure]:
        return self.state.rows("erasures")

    @property
    def subjects(self) -> Mapping[tuple[UUID, UUID], Subject]:
        return self.state.rows("subjects")
