"""SIFU's bound on how far a client's presence moved the model, and how much of it noise can hide.

    Ψ ← B·Ψ + η_g · p / (1 − p) · ‖θ_new − θ_u‖     each round; the second term in rounds with the client
    Ψ* = ε·σ / √(2 ln(1.25/δ))

For networks B ≤ 1 is an assumption, so Ψ is a heuristic here and never an (ε, δ) guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from services.program.contract import Movement


def hidden_by_noise(epsilon: float, delta: float, sigma: float) -> float:
    """Ψ*."""
    return epsilon * sigma / math.sqrt(2 * math.log(1.25 / delta))


def movement_by_round(movements: Sequence[Movement], num_rounds: int, contraction: float) -> list[float]:
    """Ψ of the models of rounds 0 to `num_rounds`, added up over all leavers. Infinite from a round on in which a
    distance was not measured, or in which a leaver was alone."""
    added = [0.0] * (num_rounds + 1)
    for movement in movements:
        if movement.distance is None or movement.share >= 1:
            added[movement.round] = math.inf
        else:
            length = movement.scale * movement.share / (1 - movement.share) * movement.distance
            added[movement.round] += length
    bounds = [0.0]
    for step in added[1:]:
        bounds.append(contraction * bounds[-1] + step)
    return bounds
