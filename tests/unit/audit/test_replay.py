"""Replaying aggregates and merges from stored files."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from services.audit.replay import AggregateStep, Failed, MergeStep, Missing, Replayed, replay, replay_step, step_of
from services.core import digests
from services.tensors import codec
from services.tensors.aggregate import weighted_step
from services.tensors.merge import merge_models
from services.tensors.streams import StoredFile
from services.wire.v1.resources import Checkpoint, Contribution, Lineage
from tests.support.kernels import over_files

WEIGHTS = (3.0, 5.0)


class Archive:
    """Files by digest, as an export bundle holds them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fetch(self, digest: str) -> StoredFile:
        path = self.folder / digest
        path.stat()
        return StoredFile(path)

    def add(self, make: Callable[[Path], object]) -> str:
        fresh = self.folder / "fresh"
        make(fresh)
        digest = digests.of_bytes(fresh.read_bytes())
        fresh.rename(self.folder / digest)
        return digest

    def add_tensors(self, *values: float) -> str:
        return self.add(lambda path: codec.write_file(path, {"w": np.array(values, np.float32)}))

    def paths(self) -> dict[str, Path]:
        return {path.name: path for path in self.folder.iterdir()}


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive(tmp_path)


@pytest.fixture
def step(archive: Archive) -> AggregateStep:
    base, updates = archive.add_tensors(1, 2), (archive.add_tensors(0.1, 0.2), archive.add_tensors(0.7, -0.3))
    listed = [{"digest": digest, "weight": weight} for digest, weight in zip(updates, WEIGHTS, strict=True)]
    params = {"base": base, "updates": listed, "scale": 0.5}
    result = archive.add(lambda out: over_files(weighted_step, params, archive.paths(), out))
    return AggregateStep(result, base, 0.5, tuple(zip(updates, WEIGHTS, strict=True)))


@pytest.fixture
def merge(archive: Archive) -> MergeStep:
    models = (archive.add_tensors(4, 5), archive.add_tensors(6, 9))
    listed = [{"digest": digest, "weight": weight} for digest, weight in zip(models, WEIGHTS, strict=True)]
    result = archive.add(lambda out: over_files(merge_models, {"models": listed}, archive.paths(), out))
    return MergeStep(result, tuple(zip(models, WEIGHTS, strict=True)))


def test_aggregates_and_merges_are_reproduced(archive: Archive, step: AggregateStep, merge: MergeStep) -> None:
    report = replay([step, merge], archive.fetch)
    assert (report.replayed, report.total, report.verdict, report.passed) == (2, 2, "full", True)
    assert report.reproduced == (step.result, merge.result)


def test_replay_of_nothing_never_passes(archive: Archive) -> None:
    report = replay([], archive.fetch)
    assert (report.replayed, report.total, report.verdict, report.passed) == (0, 0, "none", False)


def test_a_flipped_byte_in_a_stored_update_is_reported(archive: Archive, step: AggregateStep) -> None:
    stored = archive.fetch(step.updates[0][0]).path
    for position in range(stored.stat().st_size):
        data = bytearray(stored.read_bytes())
        data[position] ^= 1
        stored.write_bytes(data)
        outcome = replay_step(step, archive.fetch)
        assert isinstance(outcome, Failed)
        assert f"stored bytes of {step.updates[0][0]} have changed" in outcome.reason
        data[position] ^= 1
        stored.write_bytes(data)
    assert replay_step(step, archive.fetch) == Replayed(step.result)


@pytest.mark.parametrize("scale", [0.4, 1.0])
def test_a_false_lineage_is_reported(archive: Archive, step: AggregateStep, scale: float) -> None:
    false = AggregateStep(step.result, step.base, scale, step.updates)
    outcome = replay_step(false, archive.fetch)
    assert isinstance(outcome, Failed)
    assert "give another model" in outcome.reason


def test_an_update_left_out_of_the_lineage_is_noticed(archive: Archive, step: AggregateStep) -> None:
    false = AggregateStep(step.result, step.base, step.scale, step.updates[:1])
    assert isinstance(replay_step(false, archive.fetch), Failed)


def test_inputs_that_give_no_result_are_reported(archive: Archive, step: AggregateStep) -> None:
    outcome = replay_step(AggregateStep(step.result, step.base, 1.0, ()), archive.fetch)
    assert isinstance(outcome, Failed)
    assert "nothing can be computed" in outcome.reason


def test_a_stored_file_that_is_no_tensor_file_is_reported(archive: Archive, step: AggregateStep) -> None:
    junk = archive.add(lambda path: path.write_bytes(b"junk"))
    outcome = replay_step(AggregateStep(step.result, step.base, 1.0, ((junk, 1.0),)), archive.fetch)
    assert isinstance(outcome, Failed)


def test_purged_updates_make_the_replay_partial(archive: Archive, step: AggregateStep, merge: MergeStep) -> None:
    archive.fetch(step.updates[1][0]).path.unlink()
    report = replay([step, merge], archive.fetch)
    assert (report.replayed, report.total, report.verdict, report.passed) == (1, 2, "partial", True)
    assert report.missing == (Missing(step.result, (step.updates[1][0],)),)


def test_replay_without_any_stored_update_says_none_and_fails(archive: Archive, step: AggregateStep) -> None:
    for digest, _ in step.updates:
        archive.fetch(digest).path.unlink()
    report = replay([step], archive.fetch)
    assert (report.verdict, report.passed, report.failures) == ("none", False, ())


def test_one_failure_fails_the_replay(archive: Archive, step: AggregateStep, merge: MergeStep) -> None:
    false = MergeStep(step.result, merge.models)
    report = replay([step, false], archive.fetch)
    assert (report.replayed, report.verdict, report.passed) == (1, "partial", False)
    assert [failure.result for failure in report.failures] == [step.result]


def test_a_lineage_document_becomes_a_step(archive: Archive, step: AggregateStep) -> None:
    sent = lineage_of(step).model_dump_json()
    assert step_of(Lineage.model_validate_json(sent)) == step


def test_an_initial_model_is_no_step(step: AggregateStep) -> None:
    made = lineage_of(step)
    assert made.base is not None
    assert (
        step_of(Lineage(checkpoint=made.base, base=None, scale=1.0, contributions=[], ancestors=[], clients=[])) is None
    )


def lineage_of(step: AggregateStep) -> Lineage:
    def checkpoint(digest: str, **fields: Any) -> Checkpoint:
        return Checkpoint(
            id=UUID(int=1),
            run_id=UUID(int=2),
            cohort_id=UUID(int=3),
            cohort="all",
            epoch=1,
            digest=digest,
            bytes=1,
            base_id=None,
            created_at=datetime(2026, 1, 1, tzinfo=UTC),
            metrics={},
            is_head=False,
            **fields,
        )

    return Lineage(
        checkpoint=checkpoint(step.result, kind="aggregate", round=1),
        base=checkpoint(step.base, kind="init", round=0),
        scale=step.scale,
        contributions=[
            Contribution(
                update_id=UUID(int=4),
                client_id=UUID(int=5),
                client_name="hospital-a",
                digest=digest,
                base_digest=step.base,
                weight=weight,
                num_samples=3,
                staleness=0,
                stored=True,
            )
            for digest, weight in step.updates
        ],
        ancestors=[],
        clients=["hospital-a"],
    )


def test_a_rounded_step_is_reproduced_with_its_quantum_alone(archive: Archive, step: AggregateStep) -> None:
    listed = [{"digest": digest, "weight": weight} for digest, weight in step.updates]
    params = {"base": step.base, "updates": listed, "scale": 0.5, "quantum": 0.25}
    result = archive.add(lambda out: over_files(weighted_step, params, archive.paths(), out))
    rounded = AggregateStep(result, step.base, 0.5, step.updates, 0.25)
    assert replay_step(rounded, archive.fetch) == Replayed(result)
    assert isinstance(replay_step(AggregateStep(result, step.base, 0.5, step.updates), archive.fetch), Failed)
