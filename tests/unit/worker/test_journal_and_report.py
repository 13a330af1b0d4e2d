"""What a worker writes down about its own work, and what its owner is told of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from services.wire.v1.exclusions import ExcludedSamples
from services.wire.v1.work import TaskGrant
from tests.support import samples
from worker import journal
from worker.check import check
from worker.journal import Journal, entries
from worker.ledger import Ledger
from worker.report import gather
from worker.task_loading import TaskUnusable

CLIENT = UUID(samples.id_of("client a"))


def grant(**changes: Any) -> TaskGrant:
    document = {
        "task_id": samples.id_of("task"),
        "kind": "train",
        "run_id": samples.id_of("run"),
        "run_name": "digits",
        "cohort": "all",
        "epoch": 0,
        "round": 1,
        "attempt": 1,
        "lease_token": "a-secret-of-the-lease",
        "lease_expires_at": samples.AT,
        "heartbeat_every_s": 5.0,
        "model": {"name": "mlp"},
        "weights": samples.DIGEST,
        "weights_bytes": 4,
        "local": {},
        "seed": 1,
        **changes,
    }
    return TaskGrant.model_validate_json(json.dumps(document))


def test_a_report_counts_what_was_sent_and_what_is_stored(tmp_path: Path) -> None:
    cache, ledgers = tmp_path / "models", tmp_path / "ledgers"
    cache.mkdir()
    (cache / "one.safetensors").write_bytes(b"12345")
    written = Journal(ledgers, CLIENT, "a", "https://lethe.example.org")
    written.note(grant(), 100, (samples.DIGEST, 4000), ["loss", "seconds"])
    written.note(grant(round=2), 120, (samples.DIGEST, 4000), ["loss"])
    written.note(grant(kind="evaluate"), 20, None, ["accuracy"])
    Ledger(ledgers / f"{CLIENT}.jsonl").add(
        [ExcludedSamples(erasure_id=UUID(samples.id_of("e")), samples=[3, 17])],
    )
    report = gather(cache, ledgers)
    (sent,) = report.sent
    assert (sent.client, sent.run, sent.tasks) == ("a", "digits", {"train": 2, "evaluate": 1})
    assert (sent.updates, sent.update_bytes, sent.most_samples) == (2, 8000, 120)
    assert sent.figures == ["accuracy", "loss", "seconds"]
    assert (report.stored.num_models, report.stored.model_bytes) == (1, 5)
    assert report.stored.samples_left_out == {str(CLIENT): 2}


def test_a_journal_is_its_owners_alone_and_holds_no_secret(tmp_path: Path) -> None:
    Journal(tmp_path / "ledgers", CLIENT, "a", "https://lethe.example.org").note(grant(), 1, None, [])
    (file,) = (tmp_path / "ledgers").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert "secret" not in file.read_text()


def test_a_line_that_was_cut_off_is_passed_over(tmp_path: Path) -> None:
    written = Journal(tmp_path, CLIENT, "a", "https://lethe.example.org")
    written.note(grant(), 1, None, [])
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes() + b'{"at": "2026')
    assert len(list(entries(tmp_path))) == 1


def test_a_long_journal_begins_anew_and_the_one_before_it_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "MOST_BYTES", 10)
    written = Journal(tmp_path, CLIENT, "a", "https://lethe.example.org")
    for round in (1, 2, 3):
        written.note(grant(round=round), 1, None, [])
    assert sorted(entry.round for entry in entries(tmp_path)) == [2, 3]


def test_a_disk_that_takes_no_line_stops_no_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with capture_logs() as logs:
        Journal(tmp_path / "file" / "below", CLIENT, "a", "https://lethe.example.org").note(grant(), 1, None, [])
    assert [one["event"] for one in logs] == ["journal.not-written"]


def test_nothing_done_is_an_empty_report(tmp_path: Path) -> None:
    report = gather(tmp_path / "nowhere", tmp_path / "neither")
    assert not report.sent and not report.stored.num_models


def test_a_check_on_the_cpu_claims_nothing_of_a_gpu() -> None:
    found = check("cpu")
    by_name = {one.name: one for one in found.findings}
    assert found.passed and found.device == "cpu"
    assert by_name["determinism"].ok and "samples/s" in by_name["throughput"].detail
    assert by_name["CUDA"].ok is None and by_name["mixed precision"].ok is None
    assert by_name["CUDA"].detail.startswith("not tried")


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(TaskUnusable, match="use auto, cpu, cuda"):
        check("meta")
