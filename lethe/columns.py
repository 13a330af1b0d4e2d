"""A list as lines of text that fit a terminal's width without breaking a word.

Each column is at least as wide as its longest word; what is left goes to the columns that need more. Where not even
the longest words fit beside each other, the widest column (usually ids or digests) leaves the table: its values stand
below their rows, whole, so that they can be copied. The first column, by which people know a row, stays as long as it
is no id.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

GAP: Final = 2
INDENT: Final = "  "
LONGEST_NAME: Final = 32
"""What is longer is an id or a digest."""
_wrapping: Final = Console(width=80)  # decides nothing: Text.wrap asks for one


def lines_of(headings: Sequence[str], rows: Sequence[Sequence[Text]], width: int) -> Iterator[Text]:
    if not rows:
        return
    needs = [_longest_word(headings[i], rows, i) for i in range(len(headings))]
    beside, below = list(range(len(headings))), list[int]()
    while sum(needs[i] for i in beside) + GAP * (len(beside) - 1) > width and len(beside) > 1:
        widest = max(beside[1:] if needs[beside[0]] <= LONGEST_NAME else beside, key=needs.__getitem__)
        beside.remove(widest)
        below.append(widest)
    wants = [max(cell_len(headings[i]), *(row[i].cell_len for row in rows)) for i in range(len(headings))]
    widths = _shared_out(width - GAP * (len(beside) - 1), [needs[i] for i in beside], [wants[i] for i in beside])
    yield from _row([Text(headings[i], style="bold") for i in beside], widths)
    yield Text("─" * min(width, sum(widths) + GAP * (len(widths) - 1)), style="dim")
    for row in rows:
        yield from _row([row[i] for i in beside], widths)
        for i in sorted(below):
            yield from _below(Text.assemble(INDENT, (f"{headings[i]} ", "bold"), row[i]), width)


def _below(line: Text, width: int) -> Iterator[Text]:
    """A sentence is wrapped; one long word is left whole."""
    if max(map(cell_len, line.plain.split())) + len(INDENT) > width:
        yield line
        return
    for number, piece in enumerate(line.wrap(_wrapping, width - len(INDENT))):
        piece.rstrip()
        yield piece if number == 0 else Text.assemble(INDENT, piece)


def _longest_word(heading: str, rows: Sequence[Sequence[Text]], column: int) -> int:
    texts = (heading, *(row[column].plain for row in rows))
    return max((cell_len(word) for text in texts for word in text.split()), default=1)


def _shared_out(width: int, needs: Sequence[int], wants: Sequence[int]) -> list[int]:
    """What each column needs, and of the rest what it wants: those that want least are served first."""
    widths = list(needs)
    left = width - sum(widths)
    waiting = sorted(range(len(widths)), key=lambda i: wants[i] - needs[i])
    for served, i in enumerate(waiting):
        more = max(0, min(wants[i] - needs[i], left // (len(waiting) - served)))
        widths[i] += more
        left -= more
    return widths


def _row(cells: Sequence[Text], widths: Sequence[int]) -> Iterator[Text]:
    wrapped = [list(cell.wrap(_wrapping, width, overflow="fold")) for cell, width in zip(cells, widths, strict=True)]
    for number in range(max(map(len, wrapped))):
        line = Text()
        for pieces, width in zip(wrapped, widths, strict=True):
            piece = pieces[number] if number < len(pieces) else Text()
            piece.rstrip()
            line.append_text(piece)
            line.append(" " * (width - piece.cell_len + GAP))
        line.rstrip()
        yield line
