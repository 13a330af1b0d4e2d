"""What an erasure did to the model of a cohort: as it was, the first one without the client, as it is now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lethe.client import Client, Record
from services.core.model_figures import accuracy_of


@dataclass(frozen=True)
class ErasureEffect:
    """Checkpoints of one cohort; None where it served nothing."""

    cohort: str
    action: str
    """What the request did to it; `untouched`, or `merged again`."""
    before: Record | None
    first_clean: Record | None
    now: Record | None


def figures_now(client: Client, run_id: str) -> dict[str, Record]:
    """Figures of the run's models, by id. Note them before an erasure, which takes those of models with the client."""
    return {one["id"]: one["metrics"] for one in client.pages(f"/v1/runs/{run_id}/checkpoints")}


def erasure_effects(client: Client, run_id: str, request: Record, noted: Mapping[str, Record]) -> list[ErasureEffect]:
    """The effect on every cohort of a run that serves a model, or did when the request was fenced."""
    actions = {line["cohort"]: line["action"] for line in request["lines"] if line["run_id"] == run_id}
    found = []
    cohorts: dict[str, list[Record]] = {}
    for checkpoint in client.pages(f"/v1/runs/{run_id}/checkpoints"):
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
            found.append(ErasureEffect(cohort, action, _last(old), next(iter([*kept, *new]), None), now))
    return found


def accuracy(checkpoint: Record | None) -> float | None:
    return None if checkpoint is None else accuracy_of(checkpoint["metrics"])


def _last(checkpoints: Iterable[Any]) -> Any:
    return next(iter(reversed(list(checkpoints))), None)
