"""A page as plain text, for terminals and mails: 80 columns; a table that does not fit becomes lists of facts."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Final

from services.audit.pages.content import Block, Content, Facts, Grid, Listing, Paragraph, Section

WIDTH: Final = 80
GAP: Final = 2


def write(content: Content) -> str:
    lines = [content.title, "=" * min(WIDTH, len(content.title)), "", *_wrapped(content.headline), ""]
    lines += [*_wrapped(content.trust), ""]
    for section in (*content.pair, *content.sections):
        lines += [section.title, "-" * len(section.title), *_section(section), ""]
    return "\n".join(line.rstrip() for line in lines[:-1]) + "\n"


def _section(section: Section) -> Iterator[str]:
    for number, block in enumerate(section.blocks):
        if number:
            yield ""
        yield from _block(block)


def _block(block: Block) -> Iterator[str]:
    match block:
        case Paragraph(text):
            yield from _wrapped(text)
        case Facts(rows):
            widest = max((len(name) for name, _ in rows), default=0)
            for name, value in rows:
                yield from _wrapped(value, f"{name:<{widest}}  ", " " * (widest + GAP))
        case Listing(items):
            for item in items:
                yield from _wrapped(item, "- ", "  ")
        case Grid(headings, rows):
            yield from _grid(headings, rows)


def _grid(headings: tuple[str, ...], rows: tuple[tuple[str, ...], ...]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    if sum(widths) + GAP * (len(widths) - 1) <= WIDTH:
        for row in (headings, *rows):
            yield (" " * GAP).join(f"{value:<{width}}" for value, width in zip(row, widths, strict=True))
        return
    for number, row in enumerate(rows):
        if number:
            yield ""
        yield from _block(Facts(tuple(pair for pair in zip(headings, row, strict=True) if pair[1])))


def _wrapped(text: str, first: str = "", rest: str = "") -> list[str]:
    options = {"width": WIDTH, "initial_indent": first, "subsequent_indent": rest}
    return textwrap.wrap(text, break_long_words=False, break_on_hyphens=False, **options) or [first]  # type: ignore[arg-type]
