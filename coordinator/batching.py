"""A moment for those who come together, so that they share one transaction, one trip to the disk, one query."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import Final, Generic, TypeVar

_TURNS: Final = 3
"""Turns of the event loop: to read what has arrived, to begin its task, to come as far as that task goes."""
MOST_AT_ONCE: Final = 200
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


async def yield_to_loop() -> None:
    """Wait until the requests that have arrived by now have come as far as they can."""
    for _ in range(_TURNS):
        await asyncio.sleep(0)


class Gathered(Generic[K, V]):
    """Questions that are asked at the same moment are answered together: a thousand agents that come back after a
    restart cost a few queries, not a thousand."""

    def __init__(self, answer: Callable[[list[K]], Awaitable[Mapping[K, V]]]) -> None:
        self._answer = answer
        self._asked: dict[K, asyncio.Future[V]] = {}
        self._answering: asyncio.Task[None] | None = None

    async def ask(self, question: K) -> V:
        """The answer as of some instant after the call."""
        if question not in self._asked:
            self._asked[question] = asyncio.get_running_loop().create_future()
        if self._answering is None:
            self._answering = asyncio.create_task(self._answer_all())
        return await asyncio.shield(self._asked[question])

    async def _answer_all(self) -> None:
        while self._asked:
            await yield_to_loop()
            asked = dict(list(self._asked.items())[:MOST_AT_ONCE])
            for question in asked:
                del self._asked[question]
            try:
                answers = await self._answer(list(asked))
            except Exception as error:
                for waiting in asked.values():
                    waiting.set_exception(error)
                    waiting.exception()  # seen, also when all who asked have gone
            else:
                for question, waiting in asked.items():
                    waiting.set_result(answers[question])
        self._answering = None
