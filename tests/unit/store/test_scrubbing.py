"""What a purge takes out of rows: every column that can hold words is known to it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa

from coordinator.engine.entities import AffectedCohort, Cohort
from coordinator.engine.erasure.stages import AuditReport, LeaverReport
from coordinator.store import tables as t
from coordinator.store.codecs import CODECS
from coordinator.store.scrubbing import values
from coordinator.store.scrubbing.columns import SCRUBS
from coordinator.store.scrubbing.scope import ScrubScope
from coordinator.store.scrubbing.unscrubbed import STAYS
from services.audit.verdict import Check
from tests.unit.engine.test_unlearning import PGA, forget, trained


def test_every_column_that_can_hold_words_is_scrubbed_or_said_to_stay() -> None:
    def holds_words(column: sa.Column[Any]) -> bool:
        return isinstance(column.type, sa.JSON | sa.String)

    columns = {column for table in t.metadata.tables.values() for column in table.columns if holds_words(column)}
    scrubbed = {one.column for one in SCRUBS if holds_words(one.column)}
    assert {str(c) for c in columns} == {str(c) for c in scrubbed | set(STAYS)}, (
        "a new column that can hold words or figures belongs in SCRUBS or, with its reason, in STAYS"
    )
    assert not scrubbed & set(STAYS)


def test_what_is_scrubbed_is_of_a_kind_that_the_table_of_artefacts_takes() -> None:
    assert {one.kind for one in SCRUBS} - {None} == set(t.SCRUBBED_KINDS)


@pytest.mark.parametrize("name", ["facts", "movements", "client", "then"])
def test_what_a_method_was_told_can_be_read_when_a_leaver_is_named_like_a_part_of_it(name: str) -> None:
    world, _ = trained(name, "b", "c")
    forget(world, name, "pga", params=PGA)
    (cohort,) = world.state.cohorts.values()
    assert cohort.unlearning is not None and cohort.unlearning.facts.participants
    codec = CODECS[Cohort]["unlearning"]
    left = codec.read(values.facts_of_method(codec.write(cohort.unlearning), None, scope(name)))
    facts = replace(cohort.unlearning.facts, participants=(), movements=())
    assert left == replace(cohort.unlearning, facts=facts)


@pytest.mark.parametrize("name", ["a", "checks", "verdict", "passed", "why"])
def test_an_audit_can_be_read_when_a_leaver_is_named_like_a_part_of_it(name: str) -> None:
    check = Check("mia_auc", "failed", 0.7, 0.4, 0.6, f"{name} is above", client=name)
    report = AuditReport("failed", {"accuracy": 0.9}, {name: LeaverReport("failed", {"mia_auc": 0.7}, {})}, (check,))
    codec = CODECS[AffectedCohort]["audit"]
    mended, given_up = SimpleNamespace(action="unlearned"), SimpleNamespace(action="rolled-back")
    assert values.audited(codec.write(report), mended, scope(name)) == codec.write(report)
    left = codec.read(values.audited(codec.write(report), given_up, scope(name)))
    assert left == AuditReport("failed", {"accuracy": 0.9})


def scope(name: str) -> ScrubScope:
    nobody = frozenset[UUID]()
    return ScrubScope(uuid4(), uuid4(), nobody, frozenset({name}), False, {}, nobody, nobody, nobody, nobody)
