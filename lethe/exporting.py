"""A run's rows for other programs: JSON lines, or Parquet where pyarrow is installed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lethe.client.series import rows_of
from lethe.client.synchronous.runs import Run
from lethe.failures import UNUSABLE, CommandFailed

Row = dict[str, Any]


def rows_of_run(run: Run, what: str) -> Iterator[Row]:
    match what:
        case "metrics":
            for row in rows_of(run.checkpoints()):
                yield {"run": run.name, **row, "created_at": row["created_at"].isoformat()}
        case "checkpoints":
            yield from (one.document for one in run.checkpoints())
        case "rounds":
            yield from (one.document for one in run.rounds())
        case "tasks":
            yield from (one.document for one in run.tasks())
        case "events":
            yield from (one.document for one in run.events())
        case _:
            raise CommandFailed(f"there are no rows called {what}", exit_code=UNUSABLE)


def write_rows(rows: Iterable[Row], out: Path | None) -> int:
    """Write the rows into a new file, in the format of its ending, or as JSON lines to standard output. Returns their
    number."""
    if out is None:
        return _write_lines(rows, sys.stdout)
    if out.exists():
        raise CommandFailed(f"{out} exists already", next_step="choose another -o", exit_code=UNUSABLE)
    match out.suffix:
        case ".jsonl":
            with out.open("x", encoding="utf-8") as file:
                return _write_lines(rows, file)
        case ".parquet":
            return _write_parquet(rows, out)
        case other:
            raise CommandFailed(
                f"{out}: {other or 'no ending'} is no format of rows",
                next_step="use .jsonl or .parquet",
                exit_code=UNUSABLE,
            )


def _write_lines(rows: Iterable[Row], file: Any) -> int:
    count = 0
    for row in rows:
        file.write(json.dumps(row) + "\n")
        count += 1
    return count


def _write_parquet(rows: Iterable[Row], out: Path) -> int:
    """One column for each key; what is nested is written as JSON text, so that rows of all kinds fit one table."""
    if find_spec("pyarrow") is None:
        raise CommandFailed(
            "Parquet needs the package pyarrow, which is not installed here",
            next_step="pip install pyarrow, or write JSON lines: -o FILE.jsonl",
            exit_code=UNUSABLE,
        )
    flat = [
        {key: json.dumps(value) if isinstance(value, dict | list) else value for key, value in row.items()}
        for row in rows
    ]
    columns = list(dict.fromkeys(key for row in flat for key in row))
    table = import_module("pyarrow").table({name: [row.get(name) for row in flat] for name in columns})
    import_module("pyarrow.parquet").write_table(table, out)
    return len(flat)
