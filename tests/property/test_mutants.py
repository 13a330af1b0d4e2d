"""The machine is worth something only if it notices an engine that breaks the law."""

from __future__ import annotations

import pytest

from tests.property.mutants import MUTANTS, Mutant, applied
from tests.property.seeded_walks import breaks, walk

SHARP = (321, 308, 340, 380, 622, 746, 783, 867, 1004, 20379)
"""Walks that notice what few others do. Any change of the rules shuffles them."""
SEEDS = (*SHARP, *range(200))


def test_engine_survives_the_walks_that_kill_the_mutants() -> None:
    walk(SEEDS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_machine_kills_a_mutant_by_the_law_that_names_it(mutant: Mutant) -> None:
    with applied(mutant):
        assert breaks(mutant.law, SEEDS), f"no walk says {mutant.law!r}"
