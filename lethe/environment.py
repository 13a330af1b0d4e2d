"""The one list of `LETHE_…` environment variables that mean something, and the refusal of all others.

A misspelt variable is otherwise ignored in silence: `LETHE_DATABSE_URL` would start a coordinator on SQLite.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from lethe.failures import UNUSABLE, CommandFailed

PREFIX: Final = "LETHE_"
OF_COMMANDS: Final = {"LETHE_URL", "LETHE_TOKEN", "LETHE_TOKEN_FILE", "LETHE_DATA"}
"""Read by the commands of operators and data holders."""
OF_DEPLOYMENT: Final = {"LETHE_DB_PASSWORD", "LETHE_PORTS"}
"""Read by deploy/compose.yaml; they may well be exported where `lethe` runs."""
OF_DEVELOPMENT: Final = {"LETHE_BENCH_DATA", "LETHE_CRASH_AT", "LETHE_CRASH_ONCE_FILE"}
OF_TESTS: Final = "LETHE_TEST_"
"""The beginning of the names of those that the tests read."""
_OF_KUBERNETES: Final = re.compile(
    r"LETHE_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP)\w*)|LETHE_\w+_PORT"
)
"""What Kubernetes puts into every container for a Service whose name begins with `lethe`."""


def known_variables() -> set[str]:
    from coordinator.runtime.settings import Settings, variable_of

    return {variable_of(field) for field in Settings.model_fields} | OF_COMMANDS | OF_DEPLOYMENT | OF_DEVELOPMENT


def refuse_unknown_variables(environment: Mapping[str, str]) -> None:
    ours = {name for name in environment if name.upper().startswith(PREFIX)}
    if ours <= OF_COMMANDS:  # the usual case imports nothing
        return
    known = known_variables()
    unknown = sorted(name for name in ours - known if not _is_of_others(name))
    if not unknown:
        return
    from difflib import get_close_matches

    advice = []
    for name in unknown:
        [*meant] = get_close_matches(name.upper(), known, n=1)
        advice.append(f"did you mean {meant[0]}?" if meant else f"unset {name}; docs/operations.md lists the settings")
    raise CommandFailed(
        f"the environment has {', '.join(unknown)}, which Lethe does not know",
        next_step=" ".join(advice),
        exit_code=UNUSABLE,
    )


def _is_of_others(name: str) -> bool:
    return name.startswith(OF_TESTS) or _OF_KUBERNETES.fullmatch(name) is not None
