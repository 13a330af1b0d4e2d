"""FedRecovery, NoT and SIFU: one kernel, one model."""

from __future__ import annotations

from services.program.contract import Abort, AskClients, Compute, Erasure, Finish, Movement, Publish
from services.unlearning.fedrecovery.plan import FedRecoveryProgram
from services.unlearning.negation.plan import NegationProgram
from services.unlearning.sifu.plan import SifuProgram
from tests.support.program_driver import HEAD, INITIAL, Driver, digest, erasure, view


def test_fedrecovery_asks_nobody_and_states_its_noise() -> None:
    found = Driver(
        FedRecoveryProgram(),
        view(erasure(residuals=digest("r"), params={"noise": 0.02})),
        figures={"remove_residuals": {"noise": 0.02, "removed_norm": 1.5}},
    )
    assert isinstance(found.run(), Finish)
    (compute,) = found.taken(Compute)
    assert compute.params == {"head": HEAD, "residuals": digest("r"), "leavers": ["u"], "noise": 0.02, "seed": 7}
    (published,) = found.taken(Publish)
    assert (published.kind, published.round, published.metrics["noise"]) == ("forgotten", 9, 0.02)
    assert not found.taken(AskClients)


def test_fedrecovery_without_residuals_gives_up() -> None:
    end = Driver(FedRecoveryProgram(), view(erasure())).run()
    assert isinstance(end, Abort) and "residuals" in end.reason


def test_not_needs_neither_history_nor_the_leaver() -> None:
    found = Driver(NegationProgram(), view(erasure()))
    assert isinstance(found.run(), Finish)
    (compute,) = found.taken(Compute)
    assert (compute.kernel, compute.params) == ("negate_layers", {"model": HEAD, "layers": None})
    assert found.taken(Publish)[0].round == 9


MOVEMENTS = tuple(Movement(round, "u", share=0.5, scale=1.0, distance=0.05) for round in (2, 4, 6, 8))
CHECKPOINTS = {round: digest(f"w{round}") for round in range(1, 10)}


def sifu(**changed: object) -> Driver:
    given: Erasure = erasure(**{"movements": MOVEMENTS, "checkpoints": CHECKPOINTS, **changed})
    return Driver(SifuProgram(), view(given))


def test_sifu_goes_back_to_the_newest_model_below_its_bound() -> None:
    """Ψ is 0.05, 0.10, 0.15, 0.20 from rounds 2, 4, 6, 8 on; Ψ* of the defaults is 0.161."""
    found = sifu()
    assert isinstance(found.run(), Finish)
    assert found.taken(Compute)[0].params == {"model": digest("w7"), "noise": 0.05, "seed": 7}
    (published,) = found.taken(Publish)
    assert published.round == 7
    assert round(published.metrics["psi"], 6) == 0.15 and published.metrics["psi_star"] < 0.162


def test_sifu_skips_models_that_are_no_longer_stored() -> None:
    found = sifu(checkpoints={3: digest("w3"), 9: digest("w9")})
    found.run()
    assert found.taken(Publish)[0].round == 3


def test_sifu_adds_up_the_movements_of_all_leavers() -> None:
    both = (*MOVEMENTS, *(Movement(m.round, "v", m.share, m.scale, m.distance) for m in MOVEMENTS))
    found = sifu(movements=both, leavers=("u", "v"))
    found.run()
    assert found.taken(Publish)[0].round == 3


def test_sifu_never_passes_a_round_whose_distance_was_not_measured_or_in_which_the_leaver_was_alone() -> None:
    for unknown in (Movement(2, "u", 0.5, 1.0, None), Movement(2, "u", 1.0, 1.0, 0.0)):
        found = sifu(movements=(unknown,))
        found.run()
        assert found.taken(Publish)[0].round == 1


def test_sifu_falls_back_to_the_initial_model() -> None:
    found = sifu(movements=(Movement(1, "u", 0.5, 1.0, 100.0),))
    found.run()
    assert found.taken(Compute)[0].params["model"] == INITIAL
    assert found.taken(Publish)[0].round == 0
