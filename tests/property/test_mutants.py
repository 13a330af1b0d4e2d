"""The machine is worth something only if it notices an engine that breaks the law."""

from __future__ import annotations

import pytest

from tests.property.mutants import MUTANTS, Mutant, applied
from tests.property.seeded_walks import breaks, walk

SEEDS = (*dict.fromkeys(mutant.walk for mutant in MUTANTS), *range(200))
"""Those that notice a mutant come first: among them are some that notice what few others do."""


def test_engine_survives_the_walks_that_kill_the_mutants() -> None:
    walk(dict.fromkeys(SEEDS))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_machine_kills_a_mutant_by_the_law_that_names_it(mutant: Mutant) -> None:
    with applied(mutant):
        assert breaks(mutant.law, (mutant.walk, *SEEDS)), f"no walk says {mutant.law!r}"
