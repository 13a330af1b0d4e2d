"""The demo from beginning to end: a directory, the story told in it, and nothing left behind."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from lethe.children import Children
from lethe.demo.report import print_tails
from lethe.demo.story import Outcome, Story


def play(console: Console, *, directory: Path | None, keep: bool, rounds: int, limit_s: float) -> Outcome:
    """The whole demo; every process has ended when this returns or raises. Failure prints the ends of the logs."""
    place = directory or Path(tempfile.mkdtemp(prefix="lethe-demo-"))
    place.mkdir(parents=True, exist_ok=True)
    processes = Children(place)
    try:
        with processes:
            outcome = Story(place, processes, console, rounds=rounds, limit_s=limit_s).tell()
        return replace(outcome, kept_in=place if directory is not None or keep else None)
    except Exception:
        print_tails(console, place)
        raise
    finally:
        if directory is None and not keep:
            shutil.rmtree(place, ignore_errors=True)
