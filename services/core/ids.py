"""UUIDv7 identifiers made from an instant and given entropy, so that pure code can name what it creates."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID


def uuid7(at: datetime, entropy: bytes) -> UUID:
    """RFC 9562 version 7: 48 bits of milliseconds, then 74 bits taken from `entropy` (at least 10 bytes)."""
    milliseconds = int(at.timestamp() * 1000) & (1 << 48) - 1
    random_a = int.from_bytes(entropy[:2]) & 0x0FFF
    random_b = int.from_bytes(entropy[2:10]) & (1 << 62) - 1
    return UUID(int=milliseconds << 80 | 7 << 76 | random_a << 64 | 2 << 62 | random_b)


@dataclass(slots=True)
class IdSource:
    """A reproducible stream of identifiers: the n-th id of a message depends on (now, entropy, n) only."""

    at: datetime
    entropy: bytes
    _drawn: int = field(default=0)

    def next(self) -> UUID:
        digest = hashlib.sha256(self.entropy + self._drawn.to_bytes(8)).digest()
        self._drawn += 1
        return uuid7(self.at, digest)
