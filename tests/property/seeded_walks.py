"""The machine's rules on seeded random walks: the same steps for ever, where Hypothesis's own draws change with its
version. Used to hunt mutants, where no example has to be shrunk."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Any, Final

from hypothesis.stateful import RULE_MARKER

from services.core.errors import InvariantBroken
from tests.property.engine_machine import APPROXIMATE, CLIENTS, FAMILIES, FIRST, LINES, NEWCOMERS, EngineMachine
from tests.support.world import ROWS

DRAWS: Final[dict[str, Callable[[Random], Any]]] = {
    "name": lambda random: random.choice(CLIENTS),
    "slow": lambda random: random.choice(CLIENTS),
    "order": lambda random: random.sample(CLIENTS, len(CLIENTS)),
    "names": lambda random: random.sample(random.choice([FIRST, FIRST, CLIENTS]), random.choice([1, 1, 2])),
    "newcomers": lambda random: random.sample(NEWCOMERS, random.choice([1, 1, 2])),
    "method": lambda random: random.choice(["auto", "auto", "retrain"]),
    "approximation": lambda random: random.choice(list(APPROXIMATE)),
    "is_audited": lambda random: random.random() < 0.5,
    "falls_back": lambda random: random.random() < 0.5,
    "needs_approval": lambda random: random.random() < 0.3,
    "index": lambda random: random.choice([random.randint(-6, -1), random.randint(0, 999)]),
    "row": lambda random: random.choice(ROWS),
    "num_samples": lambda random: random.randint(1, 5),
    "seconds": lambda random: random.choice([1, 6, 31, 61]),
    "really": lambda random: random.randint(0, 3),
    "retryable": lambda random: random.random() < 0.5,
    "storage_full": lambda random: random.random() < 0.5,
    "at_once": lambda random: random.random() < 0.5,
}

BREAKDOWNS: Final = (ArithmeticError, InvariantBroken, LookupError, TypeError, ValueError)
"""What an engine that is not what it should be may end with, whatever the law that it breaks."""
RULES: Final = [getattr(f, RULE_MARKER) for f in vars(EngineMachine).values() if hasattr(f, RULE_MARKER)]


def walk(seeds: Iterable[int], num_steps: int = 25, machine_type: Callable[[], EngineMachine] = EngineMachine) -> None:
    """One run of the machine for each seed; raises what the first broken law raises."""
    for seed in seeds:
        random, machine = Random(seed), machine_type()
        specs = [random.choice(random.choice([LINES, FAMILIES])) for _ in range(random.randint(1, 2))]
        machine.create_runs(specs, random.randint(0, 3), random.sample(CLIENTS, len(CLIENTS)))
        for _ in range(num_steps):
            rule = random.choice([rule for rule in RULES if all(holds(machine) for holds in rule.preconditions)])
            rule.function(machine, **{name: DRAWS[name](random) for name in rule.arguments})
            machine.every_law_holds()
        machine.teardown()


def breaks(law: str, seeds: Iterable[int]) -> bool:
    """Whether one of the walks ends with this law broken. One that only breaks down shows nothing."""
    return any(law in _ended_with(seed) for seed in seeds)


def _ended_with(seed: int) -> str:
    machine = EngineMachine()
    try:
        walk([seed], machine_type=lambda: machine)
    except AssertionError as broken:
        return str(broken)
    except BREAKDOWNS:
        try:
            machine.every_law_holds()  # perhaps it was broken by what led to the breakdown
        except (AssertionError, *BREAKDOWNS) as broken:
            return str(broken) if isinstance(broken, AssertionError) else ""
    return ""
