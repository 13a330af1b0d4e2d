"""What NoT is, promises and needs."""

from __future__ import annotations

from typing import Final

from services.methods.description import Unlearning
from services.unlearning.negation.spec import Negation

METHOD: Final = Unlearning(
    name="not",
    summary="negate the first layer's weights, then let the remaining clients train on",
    spec=Negation,
    guarantee="approximate",
    recovery_rounds=5,
    program="services.unlearning.negation.plan:NegationProgram",
    kernels={"negate_layers": "services.unlearning.negation.kernels:negate_layers"},
)
