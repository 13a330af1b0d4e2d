"""What selection by Q-learning is."""

from __future__ import annotations

from typing import Final

from services.methods.description import Selection
from services.selection.dqn.spec import Dqn

METHOD: Final = Selection(
    name="dqn",
    summary="the clients that a network expects most accuracy of; it learns from every round",
    spec=Dqn,
    order="dqn_order",
    observes=True,
    kernels={"dqn_order": "services.selection.dqn.kernels:dqn_order"},
)
