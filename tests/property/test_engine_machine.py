"""The engine keeps every law under whatever may happen to it, and always comes to an end."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from tests.property.engine_machine import EngineMachine
from tests.property.seeded_walks import walk

TestEngine = EngineMachine.TestCase
TestEngine.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize(("seed", "num_steps"), [(4, 40), (1154, 25), (1187, 40), (1193, 25)])
def test_walks_that_once_broke_a_law_keep_them_all(seed: int, num_steps: int) -> None:
    """4: a merged model of one whose audit had failed stayed. 1154: rounds of a mended line were taken for old rounds
    that stand without the leaver. 1187: a cohort without clients waited for ever in a failed run that was
    resumed. 1193: fell with an earlier
    mend."""
    walk([seed], num_steps)
