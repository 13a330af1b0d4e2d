"""Four eyes: who may decide a request to forget, what is recorded of it, and the one extension of its deadline."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.engine import messages as m
from coordinator.engine.entities import Party
from coordinator.engine.erasure.four_eyes import eyes_of
from services.core.errors import Rejected
from services.wire.v1.people import FourEyes
from tests.support.world import FEDERATION, OFFICER, World, with_run

FILER = Party(UUID(int=7), "compliance", "Dr. Weber")
ANOTHER = Party(UUID(int=8), "compliance", "Ms. Huber")
PERSON = replace(FILER, person="Ada Weber", subject="https://id.example.org ada")


def demanding(rule: FourEyes) -> World:
    world, _ = with_run("a", "b", "c", stop={"rounds": 4})
    world.state = world.state.updated({"four_eyes": {FEDERATION: rule}})
    return world


def waiting(world: World, filed_by: Party | None = FILER) -> UUID:
    return world.file("a", needs_approval=True, filed_by=filed_by)


def test_the_filer_may_approve_where_nobody_demands_four_eyes() -> None:
    world = demanding("off")
    erasure_id = waiting(world)
    world.send(m.ApproveErasure(erasure_id, FILER))
    ruling = world.erasure(erasure_id).ruling
    assert ruling is not None
    assert (ruling.outcome, ruling.by, ruling.at, ruling.eyes) == ("approved", FILER, world.now, None)


@pytest.mark.parametrize("rule", ["asked", "all"])
def test_the_filer_decides_nothing_where_four_eyes_are_demanded(rule: FourEyes) -> None:
    world = demanding(rule)
    erasure_id = waiting(world)
    for message in (m.ApproveErasure(erasure_id, FILER), m.DenyErasure(erasure_id, "no", FILER)):
        with pytest.raises(Rejected, match="four-eyes"):
            world.send(message)
    assert world.erasure(erasure_id).status == "awaiting_approval"
    assert world.erasure(erasure_id).ruling is None
    world.send(m.ApproveErasure(erasure_id, ANOTHER, reason="as asked by mail"))
    ruling = world.erasure(erasure_id).ruling
    assert ruling is not None
    assert (ruling.by, ruling.reason, ruling.eyes) == (ANOTHER, "as asked by mail", "two credentials")


def test_nor_does_a_credential_of_the_filers_making() -> None:
    world = demanding("asked")
    erasure_id = waiting(world)
    with pytest.raises(Rejected, match="four-eyes"):
        world.send(m.ApproveErasure(erasure_id, ANOTHER, made_by=(UUID(int=9), FILER.credential_id)))
    world.send(m.ApproveErasure(erasure_id, ANOTHER, made_by=(UUID(int=9),)))
    assert world.erasure(erasure_id).status == "received"


def test_every_request_awaits_approval_where_all_of_them_need_it() -> None:
    world = demanding("all")
    erasure_id = world.file("a", filed_by=FILER)
    assert world.erasure(erasure_id).status == "awaiting_approval"
    assert world.erasure(erasure_id).needs_approval


def test_only_those_that_ask_await_it_where_that_is_the_rule() -> None:
    world = demanding("asked")
    erasure_id = world.file("a", filed_by=FILER)
    assert world.erasure(erasure_id).status == "received"
    assert not world.erasure(erasure_id).four_eyes


def test_the_rule_at_the_filing_counts() -> None:
    world = demanding("all")
    erasure_id = world.file("a", filed_by=FILER)
    world.state = world.state.updated({"four_eyes": {}})
    with pytest.raises(Rejected, match="four-eyes"):
        world.send(m.ApproveErasure(erasure_id, FILER))


def test_the_fence_that_the_log_of_tombstones_has_needs_no_approval_and_is_none() -> None:
    world = demanding("all")
    erasure_id = waiting(world)
    world.send(m.RestoreErasure(erasure_id))
    assert world.erasure(erasure_id).status == "received"
    assert world.erasure(erasure_id).ruling is None
    again = world.file("b", filed_by=None, is_tombstoned=True)
    assert world.erasure(again).status == "received"
    assert not world.erasure(again).needs_approval


@given(st.sampled_from((None, "ada", "bob")), st.sampled_from((None, "ada", "bob")), st.booleans(), st.booleans())
def test_persons_count_where_both_are_known_and_credentials_otherwise(
    filer: str | None, decider: str | None, same: bool, made: bool
) -> None:
    one = replace(FILER, subject=filer)
    other = replace(FILER if same else ANOTHER, subject=decider)
    found = eyes_of(one, other, (FILER.credential_id,) if made else ())
    if filer is not None and decider is not None:
        assert found == ("two persons" if filer != decider else None)
    else:
        assert found == (None if same or made else "two credentials")


def test_the_same_person_under_another_name_and_credential_is_refused() -> None:
    world = demanding("asked")
    erasure_id = waiting(world, PERSON)
    married = Party(UUID(int=10), "admin", "console", "Ada Huber", PERSON.subject)
    with pytest.raises(Rejected, match="four-eyes"):
        world.send(m.ApproveErasure(erasure_id, married))


def test_a_deadline_is_extended_once_and_only_forwards() -> None:
    world = demanding("off")
    erasure_id = waiting(world)
    deadline = world.erasure(erasure_id).legal_deadline
    for until in (world.now - timedelta(days=1), deadline, deadline - timedelta(days=1), world.now + timedelta(4000)):
        with pytest.raises(Rejected, match="invalid-request"):
            world.send(m.ExtendErasure(erasure_id, until, "complex", OFFICER))
    until = deadline + timedelta(days=60)
    world.send(m.ExtendErasure(erasure_id, until, "complex", OFFICER))
    erasure = world.erasure(erasure_id)
    assert erasure.legal_deadline == until
    assert erasure.extension is not None
    assert (erasure.extension.deadline_before, erasure.extension.by) == (deadline, OFFICER)
    with pytest.raises(Rejected, match="conflict"):
        world.send(m.ExtendErasure(erasure_id, until + timedelta(days=1), "again", OFFICER))


def test_a_deadline_of_what_is_over_is_not_extended() -> None:
    world = demanding("off")
    erasure_id = waiting(world)
    world.send(m.CancelErasure(erasure_id))
    with pytest.raises(Rejected, match="conflict"):
        world.send(m.ExtendErasure(erasure_id, world.now + timedelta(days=60), "complex", OFFICER))


def test_an_extension_keeps_the_version_that_its_certificate_is_about() -> None:
    world = demanding("off")
    erasure_id = waiting(world)
    before = world.erasure(erasure_id).version
    world.send(m.ExtendErasure(erasure_id, world.now + timedelta(days=60), "complex", OFFICER))
    assert world.erasure(erasure_id).version == before


def extended() -> World:
    world = demanding("off")
    world.send(m.ExtendErasure(waiting(world), world.now + timedelta(days=60), "complex", OFFICER))
    return world
