"""What a page about a certificate is made of: sections of sentences, facts, lists and tables. The writers (text,
Markdown, HTML) know nothing of certificates, and this knows nothing of how it is written.

Names and sentences come from others. Whatever a reader could not see (control characters, marks that turn the direction
of writing) is shown as its code, so that no text can pretend to be another.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import Final, Literal

Standing = Literal["good", "unsure", "bad"]
"""How sure the reader may be; never said by colour alone."""
_INVISIBLE: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def visible(text: str) -> str:
    return "".join(f"\\u{{{ord(one):x}}}" if unicodedata.category(one) in _INVISIBLE else one for one in text)


@dataclass(frozen=True, slots=True)
class Paragraph:
    text: str


@dataclass(frozen=True, slots=True)
class Facts:
    """What is called how."""

    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Listing:
    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Grid:
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


Block = Paragraph | Facts | Listing | Grid


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Content:
    """`pair`: two sections that weigh the same, side by side where there is room."""

    title: str
    headline: str
    standing: Standing
    trust: str
    pair: tuple[Section, Section]
    sections: tuple[Section, ...]


def seen(content: Content) -> Content:
    """The same content with every invisible character of its texts made visible."""
    one, other = content.pair
    return Content(
        visible(content.title),
        visible(content.headline),
        content.standing,
        visible(content.trust),
        (_section(one), _section(other)),
        tuple(map(_section, content.sections)),
    )


def _section(section: Section) -> Section:
    return Section(visible(section.title), tuple(map(_block, section.blocks)))


def _block(block: Block) -> Block:
    match block:
        case Paragraph(text):
            return Paragraph(visible(text))
        case Facts(rows):
            return Facts(tuple((visible(name), visible(value)) for name, value in rows))
        case Listing(items):
            return Listing(tuple(map(visible, items)))
        case Grid(headings, rows):
            return Grid(tuple(map(visible, headings)), tuple(tuple(map(visible, row)) for row in rows))
