"""How data reaches the terminal: rich tables for people, JSON (lists: JSON lines) for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.filesize import decimal
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from lethe.columns import lines_of

WIDEST: Final = 10_000
Column = str | Callable[[Mapping[str, Any]], Any]

console = Console()
notes = Console(stderr=True)
"""Prints what is said beside the data, on standard error: standard output stays clean for pipes."""


class Printable(Protocol):
    """An answer of the client."""

    @property
    def document(self) -> dict[str, Any]: ...


def print_answers(answers: Iterable[Printable], columns: Mapping[str, Column], *, as_json: bool) -> None:
    """A list of answers, as they came."""
    print_records((answer.document for answer in answers), columns, as_json=as_json)


def print_records(records: Iterable[Mapping[str, Any]], columns: Mapping[str, Column], *, as_json: bool) -> None:
    """A list. `columns`: heading -> key, or a function of the record."""
    if as_json:
        for record in records:
            sys.stdout.write(json.dumps(record) + "\n")
        return
    rows = [
        [cell(column(record) if callable(column) else record.get(column)) for column in columns.values()]
        for record in records
    ]
    if not rows:
        notes.print("none yet")
    for line in lines_of(list(columns), rows, console.width if console.is_terminal else WIDEST):
        console.print(line, soft_wrap=True)


def print_record(record: Mapping[str, Any], *, as_json: bool) -> None:
    """One thing: its fields, nested ones as JSON."""
    if as_json:
        sys.stdout.write(json.dumps(record, indent=2) + "\n")
        return
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")  # the end of an id or digest is not left out
    for key, value in record.items():
        nested = isinstance(value, dict | list)
        table.add_row(Text(key, style="bold"), Text(json.dumps(value)) if nested else cell(value))
    _print_wide(table)


def new_table(*headings: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def cell(value: Any) -> Text:
    """Plain text: names and reasons come from others and are never read as markup."""
    match value:
        case None | "":
            return Text("-", style="dim")
        case bool():
            return Text("yes" if value else "no")
        case float():
            return Text(f"{value:.4g}")
        case _:
            return Text(str(value))


def print_line(text: str) -> None:
    """A sentence that is data."""
    console.print(text, highlight=False, markup=False, soft_wrap=not console.is_terminal)


def say(text: str) -> None:
    """A sentence beside the data."""
    notes.print(text, highlight=False, markup=False, soft_wrap=True)


def size(num_bytes: int | None) -> str | None:
    """A number of bytes as people read it: 1.2 MB."""
    return None if num_bytes is None else decimal(num_bytes)


def when(key: str) -> Callable[[Mapping[str, Any]], str | None]:
    """A column of instants, to the second."""
    return lambda record: str(record[key])[:19].replace("T", " ") if record.get(key) else None


def _print_wide(table: Table) -> None:
    """Never cut or fold what goes into a pipe."""
    if console.is_terminal:
        console.print(table)
    else:
        needed = Measurement.get(console, console.options.update(width=WIDEST), table).maximum
        with (wide := Console(width=needed)).capture() as text:
            wide.print(table)
        for line in text.get().splitlines():
            print(line.rstrip())
