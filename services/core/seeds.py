"""Derived seeds. Every random draw in a run is named by stable names (never row ids or epochs), so that a line
retrained without a client draws exactly what a run that never had the client would have drawn."""

from __future__ import annotations

import hashlib


def derive(seed: int, *names: str | int) -> int:
    """A 63-bit seed for the draw called `names` in the run seeded with `seed`."""
    text = "\x1f".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 1
