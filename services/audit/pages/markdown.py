"""A page as Markdown (CommonMark with tables). What could be read as markup is escaped."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from services.audit.pages.content import Block, Content, Facts, Grid, Listing, Paragraph

_MARKUP: Final = re.compile(r"[\\`*_\[\]<>|~&$]|^[#+=-]|(?<=^\d)[.)]")
"""Wherever it stands, or where a line begins with it."""


def write(content: Content) -> str:
    parts = [f"# {_plain(content.title)}", f"**{_plain(content.headline)}**", _plain(content.trust)]
    for section in (*content.pair, *content.sections):
        parts += [f"## {_plain(section.title)}", *("\n".join(_block(block)) for block in section.blocks)]
    return "\n\n".join(parts) + "\n"


def _block(block: Block) -> Iterator[str]:
    match block:
        case Paragraph(text):
            yield _plain(text)
        case Facts(rows):
            yield from _table(("", ""), rows)
        case Listing(items):
            yield from (f"- {_plain(item)}" for item in items)
        case Grid(headings, rows):
            yield from _table(headings, rows)


def _table(headings: tuple[str, ...], rows: tuple[tuple[str, ...], ...]) -> Iterator[str]:
    yield _row(headings)
    yield "|" + "---|" * len(headings)
    yield from map(_row, rows)


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(map(_plain, cells)) + " |"


def _plain(text: str) -> str:
    return _MARKUP.sub(lambda match: f"\\{match[0]}", text)
