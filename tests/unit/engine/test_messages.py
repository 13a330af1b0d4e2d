"""No message, event, need or posted message can be half known: each is decided, typed, loaded and stored."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType, NoneType
from typing import Any, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import pytest

from coordinator.engine import events, messages, posting
from coordinator.engine.decide import HANDLERS, decide
from coordinator.engine.draft import Draft
from coordinator.engine.entities import NOTHING_LOADED, Client, Erasure, Job, State, TableNotLoaded
from coordinator.engine.events import ClientRemoved, JobRequested
from coordinator.engine.evolve import evolve
from coordinator.engine.messages import Envelope, Message, PauseRun, PlaceNewcomer, RemoveClient, SettleRun, StopRun
from coordinator.engine.needs import Needs
from coordinator.engine.posting import Posted
from coordinator.engine.replies import Refused
from services.core.errors import InvariantBroken
from services.core.ids import IdSource

NOW = datetime(2030, 1, 1, tzinfo=UTC)
RUN, COHORT, JOB, CLIENT = (UUID(int=number) for number in range(1, 5))
REMOVED = RemoveClient(CLIENT)


def classes(package: ModuleType) -> list[type[Any]]:
    """Those that the modules of the package define, and that it gives on."""
    modules = [import_module(f"{package.__name__}.{one.name}") for one in iter_modules(package.__path__)]
    defined = [one for module in modules for one in vars(module).values() if isinstance(one, type)]
    own = dict.fromkeys(one for one in defined if one.__module__.startswith(package.__name__))
    assert all(getattr(package, one.__name__, None) is one for one in own), "a module that the package does not give on"
    return list(own)


MESSAGES = [one for one in classes(messages) if issubclass(one, Message) and one is not Message]


def job(params: dict[str, Any], kind: Any = "post") -> Job:
    return Job(JOB, RUN, COHORT, UUID(int=9), 0, kind, None, params, [], "ready", NOW)


def test_every_message_is_decided() -> None:
    assert set(HANDLERS) == set(MESSAGES)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda one: one.__name__)
def test_a_message_is_decided_by_who_takes_it_and_replies_what_it_promises(message: type[Message[Any]]) -> None:
    hints = get_type_hints(HANDLERS[message])
    (promised,) = get_args(message.__orig_bases__[0])  # type: ignore[attr-defined]
    replied = hints.pop("return")
    is_union = get_origin(replied) is Union or type(replied).__name__ == "UnionType"
    counted = set(get_args(replied) if is_union else (replied,)) - {Refused}
    assert counted == {NoneType if promised is None else promised}
    assert hints == {"draft": Draft, "message": message}


def test_every_event_is_one_that_the_engine_must_know() -> None:
    assert set(get_args(events.Event)) == set(classes(events))


def test_every_need_loads_tables_of_the_state_and_every_table_can_be_needed() -> None:
    every: dict[str, Any] = {one.name: True if one.type == "bool" else {RUN} for one in fields(Needs)}
    needs = Needs(**every)
    assert needs.tables() == {one.name for one in fields(State)} - {"certificates", "ledger"}
    assert not Needs().tables()


def test_reading_a_table_that_was_not_loaded_names_the_table_and_the_message() -> None:
    with pytest.raises(InvariantBroken, match=r"RemoveClient reads clients, which was not loaded"):
        decide(NOTHING_LOADED, Envelope(REMOVED, NOW, bytes(16)))
    state = NOTHING_LOADED.with_loaded(["clients"]).put(Client(CLIENT, RUN, "a", "active", NOW))
    with pytest.raises(TableNotLoaded, match=r"RemoveClient reads members"):
        decide(state, Envelope(REMOVED, NOW, bytes(16)))


@pytest.mark.parametrize(
    "read",
    [
        lambda state: state.jobs[JOB],
        lambda state: state.jobs.get(JOB),
        lambda state: JOB in state.jobs,
        lambda state: list(state.jobs),
        lambda state: list(state.jobs.values()),
        lambda state: len(state.jobs),
        lambda state: bool(state.jobs),
        lambda state: {**state.jobs},
    ],
)
def test_no_way_of_reading_takes_what_was_not_loaded_for_empty(read: Any) -> None:
    with pytest.raises(TableNotLoaded, match="jobs"):
        read(NOTHING_LOADED)
    read(NOTHING_LOADED.with_loaded(["jobs"]).put(job({})))


def test_what_was_written_to_a_table_that_was_not_loaded_can_be_read_back_and_is_stored() -> None:
    state = evolve(NOTHING_LOADED, JobRequested(job({})))
    assert state.jobs[JOB] == job({}) and state.rows("jobs") == {JOB: job({})}
    with pytest.raises(TableNotLoaded, match="jobs"):
        state.jobs.get(COHORT)
    with pytest.raises(TableNotLoaded, match="clients"):
        evolve(state, ClientRemoved(CLIENT))
    assert state.with_loaded(["jobs"]).jobs == {JOB: job({})}


STORED: dict[Posted, dict[str, Any]] = {
    PauseRun(RUN, "quorum", "too few"): {
        "message": "PauseRun",
        "run_id": str(RUN),
        "hold": "quorum",
        "reason": "too few",
    },
    PlaceNewcomer(RUN, COHORT, JOB): {"message": "PlaceNewcomer", "run_id": str(RUN), "cohort_id": str(COHORT)},
    StopRun(RUN, COHORT, "good and steady", JOB): {
        "message": "StopRun",
        "run_id": str(RUN),
        "cohort_id": str(COHORT),
        "reason": "good and steady",
    },
    SettleRun(RUN, JOB): {"message": "SettleRun", "run_id": str(RUN)},
}
"""As jobs of earlier versions have them."""


@pytest.mark.parametrize(("message", "params"), STORED.items(), ids=lambda one: type(one).__name__)
def test_a_posted_message_comes_back_as_it_was(message: Posted, params: dict[str, Any]) -> None:
    assert posting.to_params(message) == params
    assert posting.from_job(job(params)) == message


def test_every_message_that_can_be_posted_is_stored() -> None:
    assert {type(message) for message in STORED} == set(get_args(Posted))
    with pytest.raises(InvariantBroken, match="Nonsense"):
        posting.from_job(job({"message": "Nonsense"}))


def test_a_job_of_a_request_belongs_to_its_federation_and_to_no_run() -> None:
    draft = Draft(State(), NOW, IdSource(NOW, bytes(16)))
    erasure = Erasure(JOB, RUN, "received", "client", {}, "auto", "exact", "", "", "", NOW, NOW)
    made = draft.request(erasure, "purge", {})
    asked = draft.state.jobs[made]
    assert (asked.run_id, asked.cohort_id, asked.epoch, asked.federation_id) == (None, None, 0, RUN)
