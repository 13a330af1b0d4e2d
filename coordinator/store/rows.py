"""Entities to rows and back. A record's fields are its table's columns, by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.engine import entities
from coordinator.engine.entities import Entity, State
from coordinator.store import tables
from coordinator.store.codecs import CODECS
from coordinator.store.warm import Known

E = TypeVar("E", bound=Entity)

TABLES: Final[dict[type[Any], sa.Table]] = {
    entities.Federation: tables.federations,
    entities.Period: tables.periods,
    entities.Client: tables.clients,
    entities.Run: tables.runs,
    entities.Cohort: tables.cohorts,
    entities.Member: tables.members,
    entities.Round: tables.rounds,
    entities.Task: tables.tasks,
    entities.Update: tables.updates,
    entities.Job: tables.jobs,
    entities.Erasure: tables.erasures,
    entities.Subject: tables.subjects,
    entities.Exclusion: tables.exclusions,
    entities.Checkpoint: tables.checkpoints,
    entities.Contribution: tables.contributions,
    entities.Parent: tables.parents,
    entities.AffectedCohort: tables.lines,
    entities.Certificate: tables.certificates,
    entities.Delivery: tables.deliveries,
    entities.Blob: tables.blobs,
    entities.LedgerEntry: tables.ledger,
}
"""Tables in an order that satisfies the foreign keys on insertion."""
FIELDS: Final[dict[str, tuple[str, ...]]] = {
    kind.table: tuple(field.name for field in dataclasses.fields(kind)) for kind in TABLES
}
_KINDS: Final = {table: kind for kind, table in TABLES.items()}
_READERS: Final = {
    kind: [(FIELDS[kind.table].index(name), codec) for name, codec in codecs.items()] for kind, codecs in CODECS.items()
}


def to_entity(kind: type[E], row: Sequence[Any]) -> E:
    """A table's columns are in the order of its record's fields."""
    if kind in _READERS:
        row = list(row)
        for place, codec in _READERS[kind]:
            if row[place] is not None:
                row[place] = codec.read(row[place])
    return kind(*row)


def to_row(entity: Entity, names: Iterable[str] | None = None) -> dict[str, Any]:
    """The record's row, or only these columns of it."""
    values = {name: getattr(entity, name) for name in names or FIELDS[entity.table]}
    for name, codec in CODECS.get(type(entity), {}).items():
        if values.get(name) is not None:
            values[name] = codec.write(values[name])
    return values


MOST_PADDED: Final = 1024


def listed(keys: Iterable[Any]) -> list[Any]:
    """Keys as the value of a list parameter: the last one is repeated up to a power of two. So a statement has few
    forms, and each connection prepares it a few times, not once for every number of keys."""
    found = list(keys)
    if 2 < len(found) < MOST_PADDED:
        found += [found[-1]] * ((1 << (len(found) - 1).bit_length()) - len(found))
    return found


async def fetch(
    connection: AsyncConnection, kind: type[E], *where: sa.ColumnElement[bool], lock: bool = False
) -> list[E]:
    found = await connection.execute(_select(TABLES[kind], lock).where(*where))
    return [to_entity(kind, row) for row in found]


async def fetch_by(
    connection: AsyncConnection, kind: type[E], column: sa.Column[Any], keys: Iterable[Any], lock: bool = False
) -> list[E]:
    """Like `fetch` where the column is among the keys, with a statement that is built only once."""
    found = await connection.execute(_select_by(TABLES[kind], column, lock), {"keys": listed(keys)})
    return [to_entity(kind, row) for row in found]


def columns_of(kind: type[Any]) -> list[sa.Column[Any]]:
    """The columns that are a record's fields. Those after them are the store's own."""
    return [TABLES[kind].c[name] for name in FIELDS[kind.table]]


@lru_cache(maxsize=64)
def _select(table: sa.Table, lock: bool) -> sa.Select[Any]:
    statement = sa.select(*columns_of(_KINDS[table]))
    return statement.order_by(*table.primary_key.columns).with_for_update() if lock else statement


@lru_cache(maxsize=256)
def _select_by(table: sa.Table, column: sa.Column[Any], lock: bool) -> sa.Select[Any]:
    return _select(table, lock).where(column.in_(sa.bindparam("keys", expanding=True)))


async def write_changes(connection: AsyncConnection, before: State, after: State, known: Known) -> None:
    """Write every record of `after` that is not the same object in `before`: new ones inserted, others updated."""
    for kind, table in TABLES.items():
        old, new = before.rows(kind.table), after.rows(kind.table)
        if old is new:
            continue
        changed = [(old.get(key), entity) for key, entity in new.items() if old.get(key) is not entity]
        added = [entity for earlier, entity in changed if earlier is None]
        updated = [(earlier, entity) for earlier, entity in changed if earlier is not None]
        await _insert(connection, table, added)
        await _update(connection, table, updated, {"stamp": known.stamp} if kind is entities.Cohort else {})
        known.note_written(kind, added, are_new=True)
        known.note_written(kind, [entity for _, entity in updated], are_new=False)


async def _insert(connection: AsyncConnection, table: sa.Table, new: Sequence[Entity]) -> None:
    if new:
        await connection.execute(_insert_statement(table), [to_row(entity) for entity in new])


async def _update(
    connection: AsyncConnection,
    table: sa.Table,
    changed: Sequence[tuple[Entity, Entity]],
    besides: Mapping[str, Any],
) -> None:
    """Only the columns that changed, and those `besides`; records that changed in the same ones go together."""
    keys = [column.name for column in table.primary_key.columns]
    batches: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for known, entity in changed:
        names = tuple(name for name in FIELDS[entity.table] if _differ(getattr(known, name), getattr(entity, name)))
        if names or besides:
            row = {**to_row(entity, (*keys, *names)), **besides}
            batches.setdefault((*names, *besides), []).append({f"_{name}": value for name, value in row.items()})
    for names, rows in batches.items():
        await connection.execute(_update_statement(table, names), rows)


def _differ(one: Any, other: Any) -> bool:
    """What did not change is mostly the very same object: no need to compare it."""
    return one is not other and one != other


@lru_cache(maxsize=64)
def _insert_statement(table: sa.Table) -> sa.Insert:
    return table.insert()


@lru_cache(maxsize=512)
def _update_statement(table: sa.Table, names: tuple[str, ...]) -> sa.Update:
    return (
        table.update()
        .where(*(column == sa.bindparam(f"_{column.name}") for column in table.primary_key.columns))
        .values({name: sa.bindparam(f"_{name}") for name in names})
    )
