"""Samples as they are written on the command line: `3,17,20-25`, or `@FILE` with such text in it."""

from __future__ import annotations

from pathlib import Path

from lethe.failures import UNUSABLE, CommandFailed
from services.wire.v1.erasure import MOST_SAMPLES


def parse_samples(text: str) -> list[int]:
    if text.startswith("@"):
        try:
            text = Path(text[1:]).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise _unusable(f"cannot read {text[1:]}: {error}") from error
    rows: set[int] = set()
    for part in text.replace(",", " ").split():
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise _unusable(f"{part!r} is no row number")
        start, end = int(first), int(last or first)
        if end < start or end - start >= MOST_SAMPLES or len(rows) > MOST_SAMPLES:
            raise _unusable(f"{part!r} is no range of at most {MOST_SAMPLES} rows")
        rows.update(range(start, end + 1))
    if not rows:
        raise _unusable("no samples are named")
    return sorted(rows)


def _unusable(what: str) -> CommandFailed:
    return CommandFailed(what, next_step="write them like 3,17,20-25, or @FILE", exit_code=UNUSABLE)
