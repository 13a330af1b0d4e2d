"""The machine is worth something only if it notices an engine that breaks the law."""

from __future__ import annotations

import pytest

from tests.property.mutants import MUTANTS, Mutant, applied
from tests.property.seeded_walks import walk

SHARP = (3, 0, 82, 46, 98, 96, 60, 58, 148, 84)
"""Walks that notice what few others do; first, so that most mutants die soon. Any change of the rules shuffles them."""
SEEDS = (*SHARP, *(seed for seed in range(120) if seed not in SHARP))


def test_engine_survives_the_walks_that_kill_the_mutants() -> None:
    walk(SEEDS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_machine_kills_a_mutant(mutant: Mutant) -> None:
    with applied(mutant), pytest.raises(Exception):  # noqa: B017 - a broken law, or an engine that breaks down over it
        walk(SEEDS)
