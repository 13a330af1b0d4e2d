"""What a profile says of the clients: the inner products of their first updates, which give every distance between
them. It is the state of policies that group clients, and a part of that of others."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from services.selection.lots import grouped, in_turns, lot
from services.selection.question import Question
from services.tensors import codec
from services.tensors.codec import Array
from services.tensors.streams import Stored, Writable
from services.tensors.updates import Updates, measure_products

Doubles = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

PRODUCTS: Final = "profile.products"
IS_KNOWN: Final = "profile.is_known"


@dataclass(frozen=True)
class Profile:
    products_KK: Doubles
    """Zero where somebody sent none."""
    is_known_K: npt.NDArray[np.bool_]
    clients: list[str]

    @classmethod
    def of(cls, question: Question, inputs: Mapping[str, Stored]) -> Profile:
        """Measured from the updates that the question names."""
        row_of = {name: row for row, name in enumerate(question.rows)}
        sent = sorted(question.profiles, key=lambda one: one.client)
        products_KK, is_known_K = np.zeros((len(row_of), len(row_of))), np.zeros(len(row_of), np.bool_)
        if sent:
            with ExitStack() as stack:
                digests = [one.digest for one in sent]
                updates = Updates.open(inputs[question.model], digests, inputs, stack)
                measured = measure_products(updates)
            rows = np.array([row_of[one.client] for one in sent])
            products_KK[np.ix_(rows, rows)] = measured
            is_known_K[rows] = True
        return cls(products_KK, is_known_K, question.rows)

    @classmethod
    def read(cls, tensors: Mapping[str, Array], question: Question) -> Profile:
        """The profile that a state holds, with an empty row for everybody who came since."""
        old = cls(tensors[PRODUCTS], tensors[IS_KNOWN].astype(np.bool_), question.clients)
        rows = question.rows
        if rows == question.clients:
            return old
        at = np.array([rows.index(name) for name in question.clients], np.int64)
        products_KK, is_known_K = np.zeros((len(rows), len(rows))), np.zeros(len(rows), np.bool_)
        products_KK[np.ix_(at, at)] = old.products_KK
        is_known_K[at] = old.is_known_K
        return cls(products_KK, is_known_K, rows)

    @classmethod
    def kept(cls, question: Question, inputs: Mapping[str, Stored], out: Writable) -> Profile:
        """The profile that the question's state holds; without one, it is measured and written as the state."""
        if question.state is not None:
            return cls.read(codec.read(inputs[question.state]), question)
        profile = cls.of(question, inputs)
        codec.write(out, profile.tensors)
        return profile

    @property
    def tensors(self) -> dict[str, Array]:
        return {PRODUCTS: self.products_KK, IS_KNOWN: self.is_known_K}

    def known(self, members: list[str]) -> tuple[list[str], Doubles]:
        """The members who have a profile, and the products among their profiles."""
        wanted = set(members)
        rows = [row for row, name in enumerate(self.clients) if name in wanted and self.is_known_K[row]]
        return [self.clients[row] for row in rows], self.products_KK[np.ix_(rows, rows)]


def squared_distances(products_KK: Doubles) -> Doubles:
    own_K = np.diagonal(products_KK)
    return np.maximum(own_K[:, None] + own_K - 2.0 * products_KK, 0.0)


def with_strangers(members: list[str], known: list[str], label_K: Ints) -> dict[str, int]:
    """The group of every member: those without a profile are a group of their own."""
    group_of = dict(zip(known, label_K.tolist(), strict=True))
    stranger = max(group_of.values(), default=-1) + 1
    return {name: group_of.get(name, stranger) for name in members}


def num_groups(question: Question, known: list[str]) -> int:
    """The number of groups: as many as clients are wanted, one of them for those without a profile."""
    has_strangers = len(known) < len(question.members)
    return max(1, min(question.num_clients - has_strangers, len(known)))


def by_lot_in_groups(question: Question, group_of: Mapping[str, int]) -> list[str]:
    """One by lot from each group, then another from each, …"""

    def own_lot(name: str) -> tuple[bytes, str]:
        return lot(question.seed, question.round, name)

    return in_turns(sorted(group, key=own_lot) for group in grouped(group_of))
