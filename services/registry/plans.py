"""Every program by the name that runs use for it."""

from __future__ import annotations

from typing import Any, Final

from services.program.contract import Program
from services.topology.plan import MergeProgram, ProfileProgram
from services.training.fedavg.plan import FedAvgProgram
from services.training.fedbuff.plan import FedBuffProgram
from services.unlearning.federaser.plan import FedEraserProgram
from services.unlearning.fedforget.plan import FedForgetProgram
from services.unlearning.fedrecovery.plan import FedRecoveryProgram
from services.unlearning.negation.plan import NegationProgram
from services.unlearning.pga.plan import PgaProgram
from services.unlearning.sifu.plan import SifuProgram

PLANS: Final[dict[str, Program[Any]]] = {
    "fedavg": FedAvgProgram(),
    "fedbuff": FedBuffProgram(),
    "profile": ProfileProgram(),
    "merge": MergeProgram(),
    "federaser": FedEraserProgram(),
    "pga": PgaProgram(),
    "fedforget": FedForgetProgram(),
    "fedrecovery": FedRecoveryProgram(),
    "not": NegationProgram(),
    "sifu": SifuProgram(),
}
