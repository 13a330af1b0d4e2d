"""The figures of a run as rows: a pandas DataFrame where pandas is installed, a list of dictionaries elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from services.core.model_figures import accuracy_of, loss_of
from services.wire.v1.resources import Checkpoint


def rows_of(checkpoints: Iterable[Checkpoint]) -> list[dict[str, Any]]:
    """One row for each published model, oldest first: where it stands, its accuracy and loss, and all its figures."""
    return [
        {
            "cohort": one.cohort,
            "epoch": one.epoch,
            "round": one.round,
            "kind": one.kind,
            "created_at": one.created_at,
            "accuracy": accuracy_of(one.metrics),
            "loss": loss_of(one.metrics),
            "superseded": one.superseded_by is not None,
            **one.metrics,
        }
        for one in sorted(checkpoints, key=lambda one: one.created_at)
    ]


def as_frame(rows: list[dict[str, Any]]) -> Any:
    if find_spec("pandas") is None:
        return rows
    return import_module("pandas").DataFrame(rows)
