"""Which rounds a history keeps, and what that covers. A history that is too large is thinned, never cut off: a method
that walks through it gets evenly spaced rounds, and round 1, without which nothing can be rebuilt, stays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from services.history.spec import UpdateHistory

FIRST_ROUND: Final = 1


@dataclass(frozen=True, slots=True)
class Coverage:
    kept: tuple[int, ...]
    dropped: tuple[int, ...]
    num_bytes: int
    """The bytes of the kept rounds."""
    interval: int
    """Rounds between two kept ones: the policy's, doubled as often as the budget demanded."""
    fits: bool
    """False: round 1 alone is larger than the budget."""
    report: str


def is_kept(round: int, policy: UpdateHistory) -> bool:
    """Whether a new round's updates enter the history at all."""
    return (round - FIRST_ROUND) % policy.interval == 0


def cover(stored: Mapping[int, int], policy: UpdateHistory) -> Coverage:
    """`stored`: bytes of each round in the history. What to keep of it, and what to drop."""
    rounds = sorted(round for round in stored if is_kept(round, policy))
    if policy.window is not None:
        rounds = sorted({*rounds[-policy.window :], *(round for round in rounds if round == FIRST_ROUND)})
    interval, newest = policy.interval, max(rounds, default=0)
    while policy.budget_bytes is not None and _bytes(rounds, stored) > policy.budget_bytes and interval <= newest:
        interval *= 2
        rounds = [round for round in rounds if (round - FIRST_ROUND) % interval == 0]
    num_bytes = _bytes(rounds, stored)
    fits = policy.budget_bytes is None or num_bytes <= policy.budget_bytes
    dropped = tuple(sorted(set(stored) - set(rounds)))
    return Coverage(
        tuple(rounds), dropped, num_bytes, interval, fits, _report(rounds, num_bytes, interval, policy, fits)
    )


def stride(missing: Iterable[int]) -> int:
    """The smallest n such that whoever walks from round 1 in steps of n meets none of the missing rounds."""
    steps = {round - FIRST_ROUND for round in missing}
    return next(n for n in range(1, max(steps, default=0) + 2) if all(step % n for step in steps))


def _bytes(rounds: list[int], stored: Mapping[int, int]) -> int:
    return sum(stored[round] for round in rounds)


def _report(rounds: list[int], num_bytes: int, interval: int, policy: UpdateHistory, fits: bool) -> str:
    if not rounds:
        return "nothing is kept: methods that need history are not available"
    said = f"{len(rounds)} rounds from {rounds[0]} to {rounds[-1]}, {num_bytes} bytes"
    if policy.budget_bytes is not None:
        said += f" of {policy.budget_bytes}"
    if interval > policy.interval:
        said += f"; thinned to every {interval}. round to stay in the budget"
    if not fits:
        said += "; more than the budget allows: raise budget_bytes, or choose a smaller dtype"
    if rounds[0] != FIRST_ROUND:
        said += f"; round {FIRST_ROUND} is missing, so nothing can be rebuilt from it"
    return said
