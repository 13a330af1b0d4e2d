"""What FedAvg and FedBuff add to a round: whom to ask, and how much an update weighs."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from services.core.digests import of_json
from services.methods.running import program_named
from services.program.contract import AskClients, CohortView, UpdateRef
from services.training.fedavg.plan import Averaging
from services.training.fedavg.spec import FedAvg
from services.training.fedbuff.plan import Buffering, scaled
from services.training.fedbuff.spec import FedBuff
from tests.support.world import spec

MODEL = of_json("model")


def view(num_members: int, of: int | None = None, **training: Any) -> CohortView:
    run = spec(training=training or {"algorithm": "fedavg"})
    return CohortView("all", num_members, of or num_members, run, MODEL, 0)


def update(num_samples: int, base_round: int) -> UpdateRef:
    return UpdateRef(UUID(int=1), "a", MODEL, num_samples, base_round, {})


def test_fedavg_asks_everybody_and_needs_everybody_by_default() -> None:
    assert Averaging(FedAvg()).ask(view(7), 1, MODEL) == AskClients("train", 1, MODEL, 7, 7)


def test_fedavg_asks_no_more_than_there_are() -> None:
    ask = Averaging(FedAvg(clients_per_round=5, quorum=4)).ask(view(3), 1, MODEL)
    assert (ask.num_clients, ask.quorum) == (3, 3)


def test_fedavg_weighs_by_samples() -> None:
    assert Averaging(FedAvg()).weigh(update(12, 0), 1) == (12.0, 0)


@pytest.mark.parametrize(
    ("whole", "members", "of", "expected"), [(10, 50, 100, 5), (10, 3, 100, 1), (10, 4, 4, 4), (1, 9, 9, 1)]
)
def test_fedbuff_scales_to_the_cohort(whole: int, members: int, of: int, expected: int) -> None:
    assert scaled(whole, view(members, of)) == expected


def test_fedbuff_keeps_at_least_a_buffer_of_clients_busy() -> None:
    stream = Buffering(FedBuff(algorithm="fedbuff", buffer_size=8, concurrency=2)).ask(view(10), 1, MODEL).stream
    assert stream is not None and (stream.in_flight, stream.buffer) == (8, 8)


@pytest.mark.parametrize(("base_round", "staleness", "weight"), [(4, 0, 10.0), (3, 1, 10 * 2**-0.5), (1, 3, 5.0)])
def test_fedbuff_weighs_by_samples_and_staleness(base_round: int, staleness: int, weight: float) -> None:
    algorithm = Buffering(FedBuff(algorithm="fedbuff", staleness_exponent=0.5))
    assert algorithm.weigh(update(10, base_round), 5) == (weight, staleness)


@pytest.mark.parametrize("algorithm", ["fedavg", "fedbuff"])
def test_program_that_starts_with_a_head_goes_on_from_it(algorithm: str) -> None:
    _, step = program_named(algorithm).start(view(4, algorithm=algorithm))
    assert isinstance(step, AskClients) and (step.round, step.model) == (1, MODEL)
