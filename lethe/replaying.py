"""Recompute the models that a certificate speaks of, from what the coordinator still keeps.

The coordinator says how each model was made; the bytes are hashed here, the sums are done here, and the digests must be
those that were certified.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from lethe.client import Client, ProblemAnswered, is_id
from services.audit.certificate import AnyStatement
from services.audit.replay import Outcome, ReplayReport, Step, replay, step_of
from services.tensors.streams import StoredFile
from services.wire.v1.resources import Lineage


@dataclass(frozen=True)
class ReplayOutcome:
    report: ReplayReport
    faults: list[str]
    """What contradicts the certificate."""

    @property
    def passed(self) -> bool:
        return self.report.passed and not self.faults

    @property
    def verdict(self) -> Literal["full", "partial", "none"]:
        return self.report.verdict

    @property
    def why_not(self) -> str:
        if self.faults:
            return "; ".join(self.faults[:3])
        return f"none of {self.report.total} steps could be replayed: their inputs are not kept any more"


def replay_served(coordinator: Client, statement: AnyStatement, say: Callable[[str], None]) -> ReplayOutcome:
    """Every step behind every model that was served when the certificate was issued."""
    faults: list[str] = []
    lineages: dict[str, Lineage] = {}
    federations: set[str] = set()
    for name, digest in statement.subjects:
        _, run_id, cohort = (*name.split("/", 2), "", "")[:3]  # run's name, run's id, cohort's name
        if not is_id(run_id):
            faults.append(f"the subject {name} names no run")
            continue
        try:
            federations.add(str(coordinator.get(f"/v1/runs/{run_id}")["federation_id"]))
            head = _published(coordinator, run_id, cohort, digest)
        except ProblemAnswered as problem:
            if problem.code != "not-found":
                raise
            head = None
        if head is None:
            faults.append(f"the coordinator knows no model {digest} of {name}")
            continue
        _collect(coordinator, head, lineages)
    faults += [
        f"model {lineage.checkpoint.digest} was superseded by erasure {lineage.checkpoint.superseded_by}"
        for lineage in lineages.values()
        if lineage.checkpoint.superseded_by is not None
    ]
    steps = [step for lineage in lineages.values() if (step := step_of(lineage)) is not None]
    say(f"replaying {len(steps)} steps behind {len(statement.subjects)} models")
    report = _replay(coordinator, steps, sorted(federations))
    faults += [f"{failure.result}: {failure.reason}" for failure in report.failures]
    return ReplayOutcome(report, faults)


def _published(coordinator: Client, run_id: str, cohort: str, digest: str) -> str | None:
    """The newest checkpoint of the subject's cohort with those bytes; a later erasure may have superseded it."""
    found = [
        checkpoint
        for checkpoint in coordinator.pages(f"/v1/runs/{run_id}/checkpoints", limit=200)
        if checkpoint["digest"] == digest and checkpoint["cohort"] == cohort
    ]
    clean = [checkpoint for checkpoint in found if checkpoint["superseded_by"] is None]
    return str((clean or found)[-1]["id"]) if found else None


def _collect(coordinator: Client, head: str, lineages: dict[str, Lineage]) -> None:
    if head not in lineages:
        lineages[head] = _lineage(coordinator, head)
    for ancestor in map(str, lineages[head].ancestors):
        if ancestor not in lineages:
            lineages[ancestor] = _lineage(coordinator, ancestor)


def _lineage(coordinator: Client, checkpoint_id: str) -> Lineage:
    return Lineage.model_validate_json(json.dumps(coordinator.get(f"/v1/checkpoints/{checkpoint_id}/lineage")))


def _replay(coordinator: Client, steps: list[Step], federations: list[str]) -> ReplayReport:
    with TemporaryDirectory(prefix="lethe-verify-") as directory:
        folder = Path(directory)

        def fetch(digest: str) -> StoredFile:
            path = folder / digest.replace(":", "-")
            if not path.exists():
                _download(coordinator, digest, federations, path)
            return StoredFile(path)

        def forget(_: Outcome) -> None:
            """Each step's files are needed once."""
            for path in folder.iterdir():
                path.unlink()

        return replay(steps, fetch, forget)


def _download(coordinator: Client, digest: str, federations: list[str], path: Path) -> None:
    for federation_id in federations:
        try:
            coordinator.download(f"/v1/blobs/{digest}?federation_id={federation_id}", path)
            return
        except ProblemAnswered as problem:
            if problem.code == "blob-damaged":
                path.touch()  # not the bytes that were stored, whatever they are
                return
            if problem.code not in ("not-found", "superseded"):
                raise
    raise FileNotFoundError(digest)
