"""The fenced blocks of the documents: where each is, in which language, and what the comment before it says."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
EXAMPLES: Final = ROOT / "examples"
PAGES: Final = sorted(
    {
        page
        for pattern in ("*.md", "docs/**/*.md", "*/README.md", "coordinator/*/README.md", "services/*/README.md")
        for page in ROOT.glob(pattern)
        if not page.relative_to(ROOT).parts[0].startswith((".", "tour"))
    }
)
_FENCE: Final = re.compile(r"^\s*(?:```+|~~~+)\s*(\w*)")
_COMMENT: Final = re.compile(r"^\s*<!--\s*(.+?)\s*-->\s*$")
PICTURES: Final = ("mermaid", "")

SESSION: Final = (
    "README.md",
    "docs/run-file.md",
    "docs/api.md",
    "docs/joining.md",
    "docs/methods/rapid.md",
    "docs/erasure.md",
    "docs/certificates.md",
    "docs/acts.md",
    "docs/worker.md",
    "docs/simulation.md",
)
"""Pages whose shell blocks are run, in this order, in one shell against one coordinator."""


FROM_PYTHON: Final = "docs/python.md"
"""Its Python blocks are run one after the other against a federation, by tests/e2e/test_from_python.py."""


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    text: str
    comment: str
    """What the HTML comment directly before it says; empty when there is none."""

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def reason_not_to_run(self) -> str | None:
        found = re.fullmatch(r"not run: (\S.+)", self.comment)
        return found.group(1) if found else None

    @property
    def file(self) -> Path | None:
        """The file of this repository whose text this is."""
        found = re.fullmatch(r"file: (\S+)", self.comment)
        return ROOT / found.group(1) if found else None

    @property
    def check(self) -> str | None:
        """How this block is tried out; None: in no way."""
        if self.reason_not_to_run is not None:
            return "not run"
        if self.language == "sh":
            return "sh" if self.page in SESSION else None
        if self.language == "python" and self.page == FROM_PYTHON:
            return "from python"
        if self.language in PICTURES:
            return "picture"
        return self.language if self.language in ("yaml", "json", "python") else None


def blocks() -> list[Block]:
    return [block for page in PAGES for block in _blocks_of(page)]


def _blocks_of(page: Path) -> list[Block]:
    found: list[Block] = []
    comment, begin, language = "", 0, ""
    lines = page.read_text("utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        fence = _FENCE.match(line)
        if fence and not begin:
            begin, language = number, fence.group(1)
        elif fence:
            text = "\n".join(lines[begin : number - 1]) + "\n"
            found.append(Block(str(page.relative_to(ROOT)), begin, language, text, comment))
            begin, comment = 0, ""
        elif not begin and line.strip():
            said = _COMMENT.match(line)
            comment = said.group(1) if said else ""
    assert not begin, f"{page}: the block of line {begin} has no end"
    return found
