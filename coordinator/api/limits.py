"""How much one client, one federation and one address may take of what all share. Counts in memory, per process."""

from __future__ import annotations

import contextlib
import ipaddress
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final
from uuid import UUID

from coordinator.runtime.settings import Settings
from services.core.errors import Rejected

BURST_S: Final = 10.0
"""Rates hold on average over so long: who was silent may ask for this much at once."""
_ENOUGH: Final = 5.0
_MOST_REMEMBERED: Final = 20_000


class Rates:
    """One token bucket per key. A key that was silent for `BURST_S` is as good as one never seen."""

    def __init__(self, per_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_s
        self._most = max(1.0, per_s * BURST_S)
        self._clock = clock
        self._left: dict[str, tuple[float, float]] = {}  # tokens, and when they were counted

    def left(self, key: str) -> float:
        """Tokens of a key: below 1, there is none to take."""
        tokens, counted_at = self._left.get(key, (self._most, 0.0))
        return min(self._most, tokens + (self._clock() - counted_at) * self._per_s)

    def take(self, key: str) -> bool:
        """Whether there was one to take."""
        now = self._clock()
        tokens, counted_at = self._left.get(key, (self._most, 0.0))
        tokens = min(self._most, tokens + (now - counted_at) * self._per_s)
        if len(self._left) >= _MOST_REMEMBERED:
            kept = {key: left for key, left in self._left.items() if now - left[1] < BURST_S}
            self._left = kept if len(kept) < _MOST_REMEMBERED / 2 else {}  # to all their full measure, and seldom
        self._left[key] = (tokens - 1 if tokens >= 1 else tokens), now
        return tokens >= 1

    def is_frugal(self, key: str) -> bool:
        """Whether it has asked for less than half of what it may."""
        return self.left(key) >= self._most / 2

    def wait_s(self, key: str) -> int:
        """Until there are enough for a few requests in a row: an upload asks first and then sends, and who came back
        for one at a time would never get to the second."""
        wanted = min(_ENOUGH, self._most)
        return max(1, math.ceil((wanted - self.left(key)) / self._per_s))


class Limits:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._of_clients = Rates(settings.max_requests_per_client)
        self._of_federations = Rates(settings.max_requests_per_federation)
        self._of_strangers = Rates(settings.max_failed_logins_per_peer)
        self._uploads: Counter[str | UUID] = Counter()

    def admit(self, name: str, federation_id: UUID | None) -> None:
        """Count a request of a credential. When a federation has used up what it may, those of its clients go on who
        ask for little: one of them cannot silence the others."""
        if not self._of_clients.take(name):
            raise _too_many(
                f"this credential may ask {self._settings.max_requests_per_client:g} times a second "
                "(LETHE_MAX_REQUESTS_PER_CLIENT)",
                self._of_clients.wait_s(name),
            )
        if federation_id is None:
            return
        federation = str(federation_id)
        if not self._of_federations.take(federation) and not self._of_clients.is_frugal(name):
            raise _too_many(
                f"the clients of this federation may ask {self._settings.max_requests_per_federation:g} times a second "
                "(LETHE_MAX_REQUESTS_PER_FEDERATION), and this one has asked for much of it",
                self._of_federations.wait_s(federation),
            )

    def admit_stranger(self, peer: str) -> None:
        """Count a request before its credential is looked up, when that was not seen lately."""
        peer = _network(peer)
        if self._of_strangers.left(peer) < 1:
            raise _too_many(
                f"too many requests without a valid credential came from {peer} (LETHE_MAX_FAILED_LOGINS_PER_PEER)",
                self._of_strangers.wait_s(peer),
            )

    def count_failure(self, peer: str) -> None:
        self._of_strangers.take(_network(peer))

    @contextlib.contextmanager
    def uploading(self, name: str, federation_id: UUID) -> Iterator[None]:
        """While a body is received. Nobody waits for another's: what is too much is refused at once."""
        own, all_own = self._uploads[name], self._uploads[federation_id]
        if own >= self._settings.max_uploads_per_client:
            raise _too_many(f"this credential has {own} uploads under way (LETHE_MAX_UPLOADS_PER_CLIENT)", 1)
        if own and all_own >= self._settings.max_uploads_per_federation:
            raise _too_many(
                f"this federation has {all_own} uploads under way (LETHE_MAX_UPLOADS_PER_FEDERATION): "
                "finish your other one first",
                1,
            )
        for key in (name, federation_id):
            self._uploads[key] += 1
        try:
            yield
        finally:
            for key in (name, federation_id):
                self._uploads[key] -= 1
                if not self._uploads[key]:
                    del self._uploads[key]


def _too_many(detail: str, wait_s: int) -> Rejected:
    return Rejected("too-many-requests", f"{detail}; try again in {wait_s} s", retry_after_s=wait_s)


def _network(peer: str) -> str:
    """Whoever has one IPv6 address has a network of them."""
    if ":" not in peer:
        return peer
    try:
        return str(ipaddress.IPv6Network((peer.partition("%")[0], 64), strict=False))
    except ValueError:
        return peer
