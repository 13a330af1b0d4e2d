"""What the kernel of a selection policy is asked, and how it answers.

The question is the kernel's parameters. The answer is a figure `order:<client>` for each member, 0 for the best; the
engine asks as many as it needs, from the best on. A kernel may write a new state, which the next question names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from services.wire.message import Message
from services.wire.v1.runs import ModelSpec

ORDER: Final = "order:"


class Sent(Message):
    """What a client sent: its update, and the number of samples it was made of."""

    client: str
    digest: str
    num_samples: int = 1


class Observed(Message):
    """The last round that clients were selected for."""

    base: str
    """Digest of the model that it started from."""
    updates: list[Sent]


class Question(Message):
    policy: dict[str, Any]
    """The policy's parameters."""
    members: list[str]
    """The candidates, in name order."""
    num_clients: int
    """How many are wanted."""
    seed: int
    round: int
    model: str
    """Digest of the model that the round starts from."""
    architecture: ModelSpec
    validation: str | None = None
    """Digest of the coordinator's validation set."""
    state: str | None = None
    clients: list[str] = []
    """The clients that the rows of the state are about, in order."""
    profiles: list[Sent] = []
    """One epoch of every client that answered, from `model`; only in the first question."""
    observed: Observed | None = None

    @property
    def rows(self) -> list[str]:
        """The clients that the rows of a new state are about."""
        return sorted({*self.clients, *self.members})

    @property
    def inputs(self) -> tuple[str, ...]:
        """Digests of all that the kernel may read."""
        own = [digest for digest in (self.model, self.state, self.validation) if digest is not None]
        seen = [] if self.observed is None else [self.observed.base, *(u.digest for u in self.observed.updates)]
        return (*own, *(profile.digest for profile in self.profiles), *seen)


def answer(order: Sequence[str], **figures: float) -> dict[str, float]:
    return {f"{ORDER}{name}": float(place) for place, name in enumerate(order)} | figures


def order_in(figures: Mapping[str, float]) -> tuple[str, ...]:
    """The members as a kernel has ordered them."""
    places = {name.removeprefix(ORDER): place for name, place in figures.items() if name.startswith(ORDER)}
    return tuple(sorted(places, key=lambda name: (places[name], name)))


def others_in(figures: Mapping[str, float]) -> dict[str, float]:
    """What a kernel says besides the order."""
    return {name: value for name, value in figures.items() if not name.startswith(ORDER)}


def first_of(order: Iterable[str], candidates: Iterable[str], k: int) -> list[str]:
    """The k best of the candidates, in name order. Whoever is in no order comes last."""
    left = set(candidates)
    known = [name for name in order if name in left]
    return sorted([*known, *sorted(left.difference(known))][:k])
