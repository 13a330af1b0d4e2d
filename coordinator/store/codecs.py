"""How fields of records are stored as JSON documents, and read again: also as older releases wrote them."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import orjson
from pydantic import TypeAdapter

from coordinator.engine.entities import (
    AffectedCohort,
    Allotment,
    Cohort,
    Erasure,
    Extension,
    Federation,
    NextRound,
    Party,
    Period,
    Ruling,
    Run,
    Selecting,
    Selection,
    StartFrom,
)
from coordinator.engine.erasure.stages import AuditReport, CleanModel, Recover, RecoveryWanted, Unlearn
from services.incentive.division import Candidate, Division, Job
from services.incentive.spec import Incentives
from services.methods.running import UNNAMED_SCHEDULE
from services.program.contract import Source
from services.wire.v1.runs import RunSpec

Document = dict[str, Any]


class Codec:
    """One field's way to its document and back. `current` brings what an older release wrote into today's form;
    `complete` adds to a document what its readers outside the coordinator look for."""

    def __init__(
        self,
        kind: Any,
        current: Callable[[Any], Any] = lambda document: document,
        complete: Callable[[Any, Any], Any] = lambda document, value: document,
    ) -> None:
        self._adapter: TypeAdapter[Any] = TypeAdapter(kind)
        self._current, self._complete = current, complete

    def read(self, document: Any) -> Any:
        return self._adapter.validate_python(self._current(document))

    def write(self, value: Any) -> Any:
        return self._complete(self._adapter.dump_python(value, mode="json"), value)


class _SpecCodec(Codec):
    """Runs are read all the time, and their parameters never change: each is parsed once."""

    def __init__(self) -> None:
        super().__init__(RunSpec)

    def read(self, document: Any) -> RunSpec:
        return _spec(orjson.dumps(document, option=orjson.OPT_SORT_KEYS))

    def write(self, value: RunSpec) -> Document:
        return value.model_dump(mode="json")


@lru_cache(maxsize=256)
def _spec(text: bytes) -> RunSpec:
    return RunSpec.model_validate_json(text)


def _recovery(document: Document) -> Document:
    """Recoveries had no name when there was only this one."""
    return {"method": UNNAMED_SCHEDULE, **document}


def _unlearning(document: Document) -> Document:
    """What followed was a number of rounds of the run's own training."""
    if "then" in document:
        return document
    then = {"until_round": document["facts"]["round"], "num_rounds": document["recovery_rounds"]}
    return {**document, "then": then}


def _audit(document: Document) -> Document:
    """Before leavers were judged one by one, a check passed or failed."""
    checks = [{"outcome": "passed" if check["passed"] else "failed", **check} for check in document["checks"]]
    return {"verdict": "passed" if document["passed"] else "failed", **document, "checks": checks}


def _shown(document: Document, report: AuditReport) -> Document:
    """The report is shown as it is stored."""
    names = ("client", "name", "passed", "outcome", "value", "before", "lowest", "highest", "why")
    checks = [{name: getattr(check, name) for name in names} for check in report.checks]
    return {"passed": report.passed, **document, "checks": checks}


CODECS: Final[dict[type[Any], dict[str, Codec]]] = {
    Run: {"spec": _SpecCodec()},
    Cohort: {
        "pending": Codec(NextRound | StartFrom | Selecting),
        "selection": Codec(Selection),
        "recovery": Codec(Recover, current=_recovery),
        "unlearning": Codec(Unlearn, current=_unlearning),
        "allotment": Codec(Allotment),
    },
    Federation: {"incentives": Codec(Incentives)},
    Period: {
        "incentives": Codec(Incentives),
        "jobs": Codec(tuple[Job, ...]),
        "candidates": Codec(tuple[Candidate, ...]),
        "division": Codec(Division),
    },
    Erasure: {
        "recovery": Codec(RecoveryWanted),
        "filed_by": Codec(Party),
        "ruling": Codec(Ruling),
        "extension": Codec(Extension),
    },
    AffectedCohort: {
        "sources": Codec(tuple[Source, ...]),
        "fallback": Codec(CleanModel),
        "audit": Codec(AuditReport, current=_audit, complete=_shown),
    },
}
"""The codecs of each record that has such fields, by the field's name."""
