"""What a purge leaves of a value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

from coordinator.engine.entities import AffectedCohort, Cohort
from coordinator.engine.erasure.stages import AuditReport, Unlearn
from coordinator.store.codecs import CODECS
from coordinator.store.scrubbing.scope import ScrubScope

SCRUBBED: Final = "(scrubbed: it was about a client that was erased)"
"""Stands in place of a sentence that was taken out."""
_OF_OTHERS: Final = ("validation_", "clients_", "num_")
"""What the names of a mended model's figures begin with that no leaver reported."""
Empty = Callable[[Any, Any, ScrubScope], Any]
"""(value, its row, who leaves) -> what stays of the value; the same value when nothing has to go."""


def becomes(nothing: Any) -> Empty:
    return lambda value, row, scope: nothing


def failed(value: Any, row: Any, scope: ScrubScope) -> Any:
    if not scope.is_own(row):
        return value
    scope.task_ids.add(row.id)
    return None


def figures(value: Any, row: Any, scope: ScrubScope) -> Any:
    is_others = row.client_id in scope.client_ids and not scope.is_own(row) and row.id not in scope.update_ids
    return value if is_others else {}


def of_model(value: Any, row: Any, scope: ScrubScope) -> Any:
    """What is left of a model's figures."""
    return _of_model(value, row.id, scope)


def _of_model(figures: dict[str, Any], model_id: UUID, scope: ScrubScope) -> dict[str, Any]:
    if model_id in scope.mended_ids:
        return {name: figure for name, figure in figures.items() if name.startswith(_OF_OTHERS)}
    return {} if model_id in scope.model_ids else figures


def audited(value: Any, row: Any, scope: ScrubScope) -> Any:
    """The certificate publishes the figures of cohorts that a method mended; all others have served their purpose."""
    if value is None or row.action == "unlearned":
        return value
    codec = CODECS[AffectedCohort]["audit"]
    report: AuditReport = codec.read(value)
    leavers = {name: own for name, own in report.leavers.items() if name not in scope.names}
    checks = [check for check in report.checks if check.client not in scope.names]
    left = tuple(replace(check, why=words(check.why, row, scope)) for check in checks)
    scrubbed = replace(report, leavers=leavers, checks=left)
    return value if scrubbed == report else codec.write(scrubbed)


def facts_of_method(value: Any, row: Any, scope: ScrubScope) -> Any:
    """What a method was told of the leavers: their part in the cohort's models, and why it gave up."""
    if value is None or scope.stays:
        return value
    codec = CODECS[Cohort]["unlearning"]
    stage: Unlearn = codec.read(value)
    facts = replace(
        stage.facts,
        params=_without(stage.facts.params, scope),
        participants=tuple(one for one in stage.facts.participants if one.client not in scope.names),
        movements=tuple(one for one in stage.facts.movements if one.client not in scope.names),
    )
    scrubbed = replace(stage, facts=facts, stopped=stage.stopped and words(stage.stopped, row, scope))
    return value if scrubbed == stage else codec.write(scrubbed)


def words(value: Any, row: Any, scope: ScrubScope) -> Any:
    return SCRUBBED if not scope.stays and scope.is_mentioned(value) else value


def with_reason(value: Any, row: Any, scope: ScrubScope) -> Any:
    """What somebody decided about a request, and why."""
    return {**value, "reason": words(value["reason"], row, scope)} if value and value["reason"] else value


def spoken(value: Any, row: Any, scope: ScrubScope) -> Any:
    """JSON of a request's log: sentences that mention a leaver."""
    return value if scope.stays else _without(value, scope)


def noted(value: Any, row: Any, scope: ScrubScope) -> Any:
    """A journal's entry: why tasks of the leavers failed, figures of purged models, sentences about a leaver."""
    if row.type == "CheckpointPublished":
        return {**value, "metrics": _of_model(value["metrics"], UUID(value["checkpoint_id"]), scope)}
    if "task_id" in value:
        is_own = "reason" in value and UUID(value["task_id"]) in scope.task_ids
        return {**value, "reason": SCRUBBED} if is_own else value
    return spoken(value, row, scope)


def parameters(value: Any, row: Any, scope: ScrubScope) -> Any:
    """The parameters of a kernel that has run: weights, figures and times by client. Nothing reads them again."""
    is_theirs = scope.was_with_them(row) or (not scope.stays and _without(value, scope) != value)
    return {} if is_theirs else value


def _without(value: Any, scope: ScrubScope) -> Any:
    """JSON without a leaver's part: entries that are keyed by its name, or are its own in a list; and with sentences
    that mention it replaced. The name alone stays."""
    match value:
        case dict():
            kept = {key: one for key, one in value.items() if scope.names.isdisjoint(key.split(":"))}
            return {key: _without(one, scope) for key, one in kept.items()}
        case list():
            others = (one for one in value if not isinstance(one, dict) or one.get("client") not in scope.names)
            return [_without(one, scope) for one in others]
        case str() if value not in scope.names and scope.is_mentioned(value):
            return SCRUBBED
    return value


def rows_of_data(value: Any, row: Any, scope: ScrubScope) -> Any:
    return {name: samples for name, samples in value.items() if name not in scope.names}


def without_canary(value: Any, row: Any, scope: ScrubScope) -> Any:
    return {**value, "canary": None} if value and value.get("canary") is not None else value


def divided(value: Any, row: Any, scope: ScrubScope) -> Any:
    """How a period divided the clients. Shares and utilities were made of all figures, so they go with those of one."""
    if scope.names.isdisjoint(value["jobs"]):
        return value
    others = {name: job for name, job in value["jobs"].items() if name not in scope.names}
    return {**value, "jobs": others, "populations": [], "total_utility": 0.0}


def of_others(value: Any, row: Any, scope: ScrubScope) -> Any:
    """The figures of a period, of those who stay."""
    return [one for one in value if one["client"] not in scope.names]


def key_of_inbox(value: Any, row: Any, scope: ScrubScope) -> Any:
    """A key that the client chose; what stays in its place is as unique."""
    return f"scrubbed {row.made}"
