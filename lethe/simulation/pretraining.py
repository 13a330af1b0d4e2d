"""Pre-training of a selection policy that learns: the same scenario again and again, each time with other clients and
samples (another seed), and the networks go on from one episode to the next."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from coordinator.engine.entities import Cohort
from coordinator.store import experiment_queries
from lethe.failures import UNUSABLE, CommandFailed
from lethe.simulation.coordinator import SimulatedCoordinator, run_to_end
from lethe.simulation.run import simulate
from lethe.simulation.scenario import Scenario
from services.core import digests
from services.methods.catalogue import SELECTION
from services.selection.dqn.kernels import COSINES, TIMES
from services.selection.profile import IS_KNOWN, PRODUCTS
from services.tensors import codec
from services.tensors.codec import Array
from services.tensors.streams import StoredFile
from services.wire.v1.runs import RunSpec, policy_of

OF_CLIENTS: Final = (COSINES, TIMES, IS_KNOWN, PRODUCTS)
"""What a state says of its own clients; another episode has others."""
OF_THE_NETWORK: Final = ("policy.", "target.", "num_steps")

Told = Callable[[int, dict[str, float]], None]
"""Is told the number of an episode that is over, and its figures."""


def pretrain(
    scenario: Scenario, episodes: int, told: Told, *, folders: Sequence[Path] | None = None, start: Path | None = None
) -> dict[str, Array]:
    """The networks after so many episodes, as a run's selection can start from them: they hold nothing of any client's
    beyond what they have learnt, and no memory."""
    policy = policy_of(scenario.run.selection)
    if not SELECTION[policy.policy].observes:
        able = ", ".join(name for name, one in SELECTION.items() if one.observes)
        raise CommandFailed(
            f"run.selection {policy.policy} learns nothing; give a scenario whose run.selection is {able}",
            exit_code=UNUSABLE,
        )
    tensors: dict[str, Array] = {} if start is None else codec.read(StoredFile(start))
    for episode in range(episodes):
        with tempfile.TemporaryDirectory(prefix="lethe-selection-") as folder:
            home, uploads = Path(folder) / "episode", list(scenario.uploads)
            spec = {**policy.model_dump(mode="json"), "state": None}
            if tensors:
                path = Path(folder) / "before.safetensors"
                codec.write_file(path, tensors)
                uploads.append(str(path))
                spec["state"] = digests.of_bytes(path.read_bytes())
            run = RunSpec.model_validate(
                {**scenario.run.model_dump(mode="json"), "selection": spec, "seed": scenario.seed + episode}
            )
            changed = {"run": run, "uploads": uploads, "seed": scenario.seed + episode}
            results = simulate(scenario.model_copy(update=changed), home, folders=folders)
            tensors = _learnt(home, scenario.seed + episode)
            accuracies = [row.accuracy for row in results.rounds if row.accuracy is not None]
        told(episode + 1, {"accuracy": accuracies[-1] if accuracies else 0.0, "steps": float(tensors["num_steps"][0])})
    return {name: array for name, array in tensors.items() if name.startswith(OF_THE_NETWORK)}


def _learnt(home: Path, seed: int) -> dict[str, Array]:
    """What the episode's selection has learnt."""
    return run_to_end(_read_state(SimulatedCoordinator(home, seed)))


async def _read_state(coordinator: SimulatedCoordinator) -> dict[str, Array]:
    await coordinator.open()
    try:
        async with coordinator.database.read() as connection:
            known = [_state_of(cohort) for cohort in await experiment_queries.cohorts(connection)]
        if not (states := [state for state in known if state is not None]):
            raise CommandFailed("the scenario selected nobody: ask fewer clients than there are in a round")
        found = await coordinator.fetch(states[:1])
        tensors = codec.read(StoredFile(found[states[0]]))
        return {name: array for name, array in tensors.items() if name not in OF_CLIENTS}
    finally:
        await coordinator.close()


def _state_of(cohort: Cohort) -> str | None:
    return None if cohort.selection is None else cohort.selection.state
