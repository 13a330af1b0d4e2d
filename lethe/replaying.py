"""Recompute the models that a certificate speaks of, from what the coordinator still keeps.

The coordinator says how each model was made; the bytes are hashed here, the sums are done here, and the digests must be
those that were certified.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal
from uuid import UUID

from lethe.client.answers import is_id
from lethe.client.synchronous.client import Client
from lethe.client.synchronous.models import Checkpoint
from lethe.client.synchronous.runs import Run
from lethe.client.views import Period
from lethe.errors import NotFound, Refused
from lethe.periods import comes_out_again
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
    lineages: dict[UUID, Lineage] = {}
    federations: set[str] = set()
    for name, digest in statement.subjects:
        _, run_id, cohort = (*name.split("/", 2), "", "")[:3]  # run's name, run's id, cohort's name
        if not is_id(run_id):
            faults.append(f"the subject {name} names no run")
            continue
        try:
            run = coordinator.runs.get(run_id)
            federations.add(str(run.federation_id))
            head = _published(run, cohort, digest)
        except NotFound:
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
    faults += _divided_otherwise(coordinator, sorted(federations), say)
    faults += [f"{failure.result}: {failure.reason}" for failure in report.failures]
    return ReplayOutcome(report, faults)


def _periods(coordinator: Client, federation_id: str) -> list[Period]:
    """A coordinator of an earlier release has none."""
    try:
        return list(coordinator.incentives.periods(federation=federation_id))
    except NotFound:
        return []


def _divided_otherwise(coordinator: Client, federations: list[str], say: Callable[[str], None]) -> list[str]:
    """Periods in which the stored figures would have divided clients among jobs in another way: who served them is a
    part of what shaped the models."""
    faults, num_again, num_missing = [], 0, 0
    for federation_id in federations:
        for period in _periods(coordinator, federation_id):
            match comes_out_again(period):
                case True:
                    num_again += 1
                case None:
                    num_missing += 1
                case False:
                    faults.append(f"period {period.number} of federation {federation_id} divides clients otherwise")
    if num_again or num_missing:
        say(f"{num_again} periods divided clients again as they did, {num_missing} lack figures of erased clients")
    return faults


def _published(run: Run, cohort: str, digest: str) -> Checkpoint | None:
    """The newest checkpoint of the subject's cohort with those bytes; a later erasure may have superseded it."""
    found = [
        checkpoint for checkpoint in run.checkpoints() if checkpoint.digest == digest and checkpoint.cohort == cohort
    ]
    clean = [checkpoint for checkpoint in found if checkpoint.superseded_by is None]
    return (clean or found)[-1] if found else None


def _collect(coordinator: Client, head: Checkpoint, lineages: dict[UUID, Lineage]) -> None:
    if head.id not in lineages:
        lineages[head.id] = head.lineage()
    for ancestor in lineages[head.id].ancestors:
        if ancestor not in lineages:
            lineages[ancestor] = coordinator.checkpoints.get(ancestor).lineage()


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
            coordinator.blobs.download(digest, path, federation=federation_id)
            return
        except Refused as problem:
            if problem.code == "blob-damaged":
                path.touch()  # not the bytes that were stored, whatever they are
                return
            if problem.code not in ("not-found", "superseded"):
                raise
    raise FileNotFoundError(digest)
