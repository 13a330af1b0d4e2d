"""What a check is, what it finds, and what it looks at."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from coordinator.runtime.coordinator import Coordinator

PATIENCE_S: Final = 2.0
"""What is still there after so long is nobody's work in progress."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of what was found, and what to do about it."""

    name: str
    what: str
    remedy: str
    is_fault: bool = True
    """False: it is worth knowing, and nothing is wrong."""


@dataclass(frozen=True)
class Installation:
    """The installation, as a coordinator of which nothing runs."""

    coordinator: Coordinator
    is_deep: bool = False
    """Open every blob and compare its digest."""
    url: str | None = None
    """The address of a coordinator that runs on it; None: those that serve this home."""
    patience_s: float = PATIENCE_S
    say: Callable[[str], None] = lambda text: None
    """Progress of long work."""

    async def wait(self) -> None:
        """Pause before the second look."""
        await asyncio.sleep(self.patience_s)


Look = Callable[[Installation], Awaitable[list[Finding] | None]]
"""None: there is nothing to look at."""
Mend = Callable[[Installation], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Check:
    """Its findings may have several names."""

    name: str
    look: Look
    mend: Mend | None = None
    """None: that takes a person, or a backup."""
    needs: tuple[str, ...] = ("database-integrity", "schema")
    """Where one of these was found it is not made."""


def some(things: list[str], most: int = 3) -> str:
    """The first few of them by name."""
    shown = ", ".join(things[:most])
    return shown if len(things) <= most else f"{shown} and {len(things) - most} more"
