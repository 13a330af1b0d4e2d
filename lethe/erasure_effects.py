"""What an erasure did to the model of a cohort: as it was, the first one without the client, as it is now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lethe.client.answers import Document
from lethe.client.synchronous.client import Client
from services.core.model_figures import accuracy_of


@dataclass(frozen=True)
class ErasureEffect:
    """Checkpoints of one cohort; None where it served nothing."""

    cohort: str
    action: str
    """What the request did to it; `untouched`, or `merged again`."""
    before: Document | None
    first_clean: Document | None
    now: Document | None


def figures_now(client: Client, run_id: str) -> dict[str, Document]:
    """Figures of the run's models, by id. Note them before an erasure, which takes those of models with the client."""
    return {str(one.id): one.metrics for one in client.runs.get(run_id).checkpoints()}


def erasure_effects(
    client: Client, run_id: str, request: Document, noted: Mapping[str, Document]
) -> list[ErasureEffect]:
    """The effect on every cohort of a run that serves a model, or did when the request was fenced."""
    actions = {line["cohort"]: line["action"] for line in request["lines"] if line["run_id"] == run_id}
    found = []
    cohorts: dict[str, list[Document]] = {}
    for checkpoint in (one.document for one in client.runs.get(run_id).checkpoints()):
        known = {**checkpoint, "metrics": checkpoint["metrics"] or noted.get(checkpoint["id"], {})}
        cohorts.setdefault(checkpoint["cohort"], []).append(known)
    for cohort, checkpoints in sorted(cohorts.items()):
        in_order = sorted(checkpoints, key=lambda one: str(one["created_at"]))
        old = [one for one in in_order if one["created_at"] <= request["fenced_at"]]
        new = [one for one in in_order if one["created_at"] > request["fenced_at"]]
        action = actions.get(cohort) or ("merged again" if new and new[0]["kind"] == "merge" else "untouched")
        clean = [one for one in old if one["superseded_by"] is None]
        kept = clean[-1:] if action in ("rolled-back", "untouched") else []
        now = next((one for one in in_order if one["is_head"]), None)
        if action != "untouched" or now is not None:
            found.append(ErasureEffect(cohort, action, old[-1] if old else None, next(iter([*kept, *new]), None), now))
    return found


def accuracy(checkpoint: Document | None) -> float | None:
    return None if checkpoint is None else accuracy_of(checkpoint["metrics"])
