"""Documents that earlier releases stored are read as what the engine knows today, and erasures under way go on."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from coordinator.engine.entities import AffectedCohort, Cohort
from coordinator.engine.erasure.stages import PLAIN, AuditReport, Recover
from coordinator.store.codecs import CODECS
from services.audit.verdict import Check
from tests.support.world import World, with_run
from tests.unit.engine.test_unlearning import PGA, asked_in_vain, audited, forget, go_on, trained
from tests.unit.unlearning.test_rapid import QUICK

STORED: Final[dict[str, dict[str, Any]]] = json.loads(
    (Path(__file__).parents[2] / "golden/stages-untyped.json").read_text()
)
"""What the release before typed stages stored in the situations below."""


def asked() -> World:
    world, _ = trained("a", "b", "c")
    forget(world, "a", "pga", params=PGA, recovery_rounds=1)
    return world


def walking() -> World:
    world, _ = trained("a", "b", "c")
    forget(world, "a", "federaser")
    return world


def rapid() -> World:
    world, _ = with_run("a", "b", "c", stop={"rounds": 8})
    go_on(world, 5)
    world.fence("a", method="rapid", params=QUICK)
    world.settle()
    return world


def tree() -> World:
    world, _ = with_run("a", "b", "c", "d", topology={"kind": "tree", "shape": "balanced"}, stop={"rounds": 4})
    go_on(world, 2)
    world.fence("a")
    return world


SITUATIONS: Final[dict[str, Callable[[], World]]] = {
    "asked": asked,
    "walking": walking,
    "gave up": lambda: asked_in_vain()[0],
    "audited": lambda: audited(0.15)[0],
    "rapid": rapid,
    "tree": tree,
}


def read(kind: type, documents: dict[str, Any]) -> dict[str, Any]:
    return {name: CODECS[kind][name].read(found) if found is not None else None for name, found in documents.items()}


def as_stored_before(world: World, situation: str) -> World:
    """The world with what an earlier release stored in place of what the engine has just made."""
    for cohort in world.state.cohorts.values():
        world.state = world.state.put(replace(cohort, **read(Cohort, STORED[situation]["cohorts"][cohort.name])))
    for one in world.state.affected_cohorts.values():
        world.state = world.state.put(replace(one, **read(AffectedCohort, STORED[situation]["lines"][one.cohort_name])))
    return world


@pytest.mark.parametrize("situation", SITUATIONS)
def test_what_an_earlier_release_stored_is_what_the_engine_knows_today(situation: str) -> None:
    expected = SITUATIONS[situation]().state
    found = as_stored_before(SITUATIONS[situation](), situation).state
    assert found.affected_cohorts == expected.affected_cohorts
    for cohort in expected.cohorts.values():
        is_named = cohort.recovery is not None and cohort.recovery.method != PLAIN  # plain ones were not noted
        assert found.cohorts[cohort.id] == replace(cohort, recovery=cohort.recovery if is_named else None)


def test_a_cohort_in_the_middle_of_an_erasure_goes_on_after_the_upgrade() -> None:
    world = as_stored_before(walking(), "walking")
    go_on(world, 2)
    assert {erasure.status for erasure in world.state.erasures.values()} == {"completed"}
    (cohort,) = world.state.cohorts.values()
    assert (cohort.unlearning, cohort.recovery) == (None, Recover(until_round=3, from_round=3))


def test_recoveries_of_both_kinds_are_told_apart() -> None:
    codec = CODECS[Cohort]["recovery"]
    older = {"params": {}, "from_round": 2, "until_round": 5}
    assert codec.read(older) == Recover(5, "rapid", from_round=2)
    assert codec.read(codec.write(Recover(until_round=5))) == Recover(5, PLAIN)


def test_an_audit_from_before_leavers_were_judged_one_by_one_is_read() -> None:
    check = {"name": "mia_auc", "passed": False, "value": 0.7, "lowest": 0.4, "highest": 0.6, "why": "0.7 is above 0.6"}
    older = {"passed": False, "figures": {"mia_auc": 0.7}, "checks": [check]}
    made = Check("mia_auc", "failed", 0.7, 0.4, 0.6, "0.7 is above 0.6")
    assert CODECS[AffectedCohort]["audit"].read(older) == AuditReport("failed", {"mia_auc": 0.7}, {}, (made,))


def test_an_audit_is_stored_as_it_is_shown() -> None:
    (affected,) = audited(0.15)[0].state.affected_cohorts.values()
    assert CODECS[AffectedCohort]["audit"].write(affected.audit) == STORED["audited"]["lines"]["all"]["audit"]
