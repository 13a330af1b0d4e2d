"""decide is a pure function, evolve is total, and the state is nothing but the fold of the events."""

from __future__ import annotations

import json
from functools import reduce
from typing import get_args

import pytest

from coordinator.engine import events as e
from coordinator.engine import messages as m
from coordinator.engine.decide import decide
from coordinator.engine.evolve import evolve
from coordinator.engine.journal import entry
from tests.property.engine_machine import CLIENTS, LINES, EngineMachine
from tests.property.seeded_walks import walk
from tests.support.world import World, with_run
from tests.unit.engine.test_allocation import divided
from tests.unit.engine.test_four_eyes import extended
from tests.unit.engine.test_recovery import recovered_by_itself, recovered_by_oversampling
from tests.unit.engine.test_runs import failed
from tests.unit.engine.test_selection import selected
from tests.unit.engine.test_stopping import stopped
from tests.unit.engine.test_unlearning import asked_in_vain, audited, forgotten_by_federaser, forgotten_by_pga


@pytest.fixture(scope="module")
def worlds() -> list[World]:
    """Worlds to which much has happened."""
    seen: list[World] = []

    class Recorded(EngineMachine):
        def teardown(self) -> None:
            super().teardown()
            seen.append(self.world)

    walk((*range(29), 35), machine_type=Recorded)
    heard = Recorded()
    heard.create_runs([LINES[0]], 0, list(CLIENTS))
    heard.kernel_finishes()
    heard.claim(CLIENTS[0])
    heard.heartbeat(-1)
    heard.world.beyond_bounds.add(CLIENTS[0])
    heard.everybody_works_for_a_while(list(CLIENTS))
    heard.teardown()
    revived, run_id = failed("a", "b")
    revived.send(m.ResumeRun(run_id))
    recovered = [recovered_by_oversampling("pga"), recovered_by_itself()]
    forgotten = [forgotten_by_federaser(), forgotten_by_pga(), asked_in_vain()[0], audited(0.15)[0]]
    return [*seen, divided(), revived, extended(), stopped()[0], *selected(), *forgotten, *recovered]


def test_same_inputs_give_the_same_decision(worlds: list[World]) -> None:
    for world in worlds:
        for before, envelope, decision in world.decisions:
            assert decide(before, envelope) == decision


def test_state_is_the_fold_of_the_events(worlds: list[World]) -> None:
    for world in worlds:
        for before, _, decision in world.decisions:
            assert reduce(evolve, decision.events, before) == decision.state


def test_every_event_happens_somewhere_in_these_worlds(worlds: list[World]) -> None:
    """So that the tests above and below speak about all of them."""
    happened = {type(event) for world in worlds for event in world.events}
    assert set(get_args(e.Event)) - happened == set()


def test_journal_lines_are_json_and_never_hold_a_token(worlds: list[World]) -> None:
    for world in worlds:
        tokens = {t.lease_token for t in world.state.tasks.values() if t.lease_token}
        for _, _, decision in world.decisions:
            for event in decision.events:
                if line := entry(event, decision.state):
                    assert not any(token in json.dumps(line.data) for token in tokens)


def test_every_decision_names_new_things_differently() -> None:
    world, _ = with_run(*CLIENTS)
    before, envelope, decision = world.decisions[0]
    other = decide(before, m.Envelope(envelope.message, envelope.now, b"other entropy"))
    assert decision.state.cohorts.keys().isdisjoint(other.state.cohorts.keys())
