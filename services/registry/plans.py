"""Every program by the name that runs use for it."""

from __future__ import annotations

from typing import Any, Final

from services.program.contract import Program
from services.topology.plan import MergeProgram, NewcomerProgram, ProfileProgram
from services.training.exact_fun.plan import ExactFunProgram
from services.training.fats.plan import FatsProgram
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
    "fats": FatsProgram(),
    "exact_fun": ExactFunProgram(),
    "profile": ProfileProgram(),
    "newcomer": NewcomerProgram(),
    "merge": MergeProgram(),
    "federaser": FedEraserProgram(),
    "pga": PgaProgram(),
    "fedforget": FedForgetProgram(),
    "fedrecovery": FedRecoveryProgram(),
    "not": NegationProgram(),
    "sifu": SifuProgram(),
}
