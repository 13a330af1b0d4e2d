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
from coordinator.store.rows import fetch, fetch_by, to_entity

E = TypeVar("E", bound=Entity)


@dataclass(slots=True)
class Loading:
    """Adding to a table that no need of the messages loads raises `TableNotLoaded`."""

    connection: AsyncConnection
    needs: Needs
    state: State
    whole: set[UUID] = field(default_factory=set)
    """Runs whose lineage and membership are needed completely."""

    async def add(self, kind: type[E], *where: sa.ColumnElement[bool], lock: bool = False) -> list[E]:
        return self.merge(kind, await fetch(self.connection, kind, *where, lock=lock))

    async def add_by(self, kind: type[E], column: sa.Column[Any], keys: Iterable[Any], lock: bool = False) -> list[E]:
        return self.merge(kind, await fetch_by(self.connection, kind, column, keys, lock))

    async def add_found(self, kind: type[E], statement: sa.Select[Any], keys: Iterable[Any]) -> list[E]:
        rows = await self.connection.execute(statement, {"keys": list(keys)})
        return self.merge(kind, [to_entity(kind, row) for row in rows])

    def merge(self, kind: type[E], found: list[E]) -> list[E]:
        """Records already known win: they may carry changes not yet written."""
        merged: Any = {**{entity.key: entity for entity in found}, **getattr(self.state, kind.table)}
        self.state = self.state.updated({kind.table: merged})
        return found

    def note(self, found: Mapping[str, Mapping[Any, Any]]) -> None:
        self.state = self.state.with_rows(found)

    def cohorts_of(self, run_ids: set[UUID]) -> set[UUID]:
        return {c.id for c in self.cohorts.values() if c.run_id in run_ids}

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
