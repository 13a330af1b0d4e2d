"""A message: what is replied to it, and what has to be loaded before it can be decided."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from coordinator.engine.needs import Needs

Reply = TypeVar("Reply", covariant=True)


class Message(ABC, Generic[Reply]):
    """Something that happened, or that somebody wants. It is decided with a reply of the type that it names."""

    __slots__ = ()

    @abstractmethod
    def add_needs(self, needs: Needs) -> None:
        """Say what has to be loaded before this can be decided."""

    @property
    def is_lasting(self) -> bool:
        """Whether the decision must outlive a power failure once it is answered. Not, if whoever was answered would
        notice, and bring it again."""
        return True


def needs_of(messages: Iterable[Message[Any]]) -> Needs:
    needs = Needs()
    for message in messages:
        message.add_needs(needs)
    return needs


@dataclass(frozen=True, slots=True)
class Envelope:
    """A message with the instant of its transaction and the entropy that names what it creates."""

    message: Message[Any]
    now: datetime
    entropy: bytes
