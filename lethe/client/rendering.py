"""How answers look in a notebook: one table of fields, and a table below it for each list of objects."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

MOST_ROWS: Final = 50
_LONG: Final = 400


def as_html(title: str, document: Mapping[str, Any]) -> str:
    tables = {key: value for key, value in document.items() if _is_table(value)}
    rows = "".join(
        f"<tr><th style='text-align:left'>{escape(key)}</th><td style='text-align:left'>{_cell(value)}</td></tr>"
        for key, value in document.items()
        if key not in tables
    )
    below = "".join(f"<div><b>{escape(key)}</b>{table(value)}</div>" for key, value in tables.items())
    return f"<div><b>{escape(title)}</b><table>{rows}</table>{below}</div>"


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows of the same keys; of very many, the first."""
    headings = list(dict.fromkeys(key for row in rows[:MOST_ROWS] for key in row))
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join(
        "<tr>" + "".join(f"<td>{_cell(row.get(heading))}</td>" for heading in headings) + "</tr>"
        for row in rows[:MOST_ROWS]
    )
    more = f"<div>and {len(rows) - MOST_ROWS} more</div>" if len(rows) > MOST_ROWS else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def _cell(value: Any) -> str:
    """Names and reasons come from others: they are text, never markup."""
    match value:
        case None | "":
            return "–"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.4g}"
        case dict() | list():
            text = json.dumps(value)
        case _:
            text = str(value)
    return escape(text if len(text) <= _LONG else text[:_LONG] + "…")
