"""Steps that several unlearning programs share."""

from __future__ import annotations

from collections.abc import Sequence

from services.core.errors import InvariantBroken
from services.program.contract import CohortView, Compute, Erasure, UpdateRef
from services.training.rounds import algorithm_of


def erasure_of(view: CohortView) -> Erasure:
    if view.erasure is None:
        raise InvariantBroken(f"an unlearning program runs in cohort {view.name}, which has nothing to forget")
    return view.erasure


def server_learning_rate(view: CohortView) -> float:
    """The server's learning rate in the run's own algorithm."""
    return algorithm_of(view).scale


def num_asked(view: CohortView) -> int:
    """As many clients as an ordinary synchronous round asks; all of an asynchronous run's cohort."""
    ask = algorithm_of(view).ask(view, view.round + 1, "")
    return ask.num_clients if ask.stream is None else view.num_members


def weighted_step(base: str, updates: Sequence[tuple[str, float]], scale: float = 1.0) -> Compute:
    """base + scale · Σ w·Δ / Σ w over (digest, weight), in the order given."""
    params = {
        "base": base,
        "updates": [{"digest": digest, "weight": weight} for digest, weight in updates],
        "scale": scale,
    }
    return Compute("weighted_step", params, (base, *(digest for digest, _ in updates)))


def returned(updates: Sequence[UpdateRef], clients: Sequence[str]) -> list[tuple[UpdateRef, str]]:
    """Answers of these clients that carry an update, with its digest."""
    return [(update, update.digest) for update in updates if update.client in clients and update.digest is not None]
