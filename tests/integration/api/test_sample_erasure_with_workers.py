"""Samples are forgotten with real workers over real HTTP: restarted in between, and once with another disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.audit.verification import check
from tests.integration.api.site import Site, listening, opened, until
from tests.integration.api.test_erasure_over_http import REQUESTS, checkpoints, completed
from tests.support.serving import served
from worker.journal import SUFFIX as JOURNAL_SUFFIX

pytestmark = pytest.mark.anyio
ERASED = (1, 5, 13)
"""Two training rows and a held-out one."""


def write_data(path: Path, seed: int, without: tuple[int, ...] = ()) -> str:
    """12 rows to train on, 4 held out."""
    numbers = np.random.default_rng(seed)
    x = numbers.normal(size=(16, 4)).astype(np.float32)
    y = (x.sum(axis=1) > 0).astype(np.int64)
    train = [row for row in range(12) if row not in without]
    test = [row for row in range(12, 16) if row not in without]
    np.savez(path, x_train=x[train], y_train=y[train], x_test=x[test], y_test=y[test])
    return f"npz:{path}"


async def run_to_its_end(site: Site, key: str) -> str:
    """The digest of the model that a run ends with."""
    model = {"name": "mlp", "params": {"input_shape": [4], "num_classes": 2, "hidden": [8]}}
    run = await site.start_run(
        key, model=model, init=None, seed=7, stop={"rounds": 3}, validation={"at_clients": True}, local={"epochs": 2}
    )
    return await head_of(site, run)


async def head_of(site: Site, run: Any) -> str:
    async def has_ended() -> bool:
        found = await site.admin.get(f"/v1/runs/{run['id']}")
        assert found["status"] in ("running", "completed"), found["reason"]
        return bool(found["status"] == "completed")

    await until(has_ended, within_s=60)
    (head,) = [one["digest"] for one in await checkpoints(site, run) if one["is_head"]]
    return str(head)


async def forget(site: Site, *rows: int) -> str:
    body = {
        "federation_id": site.federation_id,
        "subjects": ["b"],
        "scope": "samples",
        "samples": {"b": rows},
        "method": "retrain",
    }
    filed = await site.admin.post(REQUESTS, body, expect=202, headers={"Idempotency-Key": str(rows)})
    return str(filed["id"])


async def reached(site: Site, erasure_id: str, status: str) -> Any:
    async def is_reached() -> bool:
        return bool((await site.admin.get(f"{REQUESTS}/{erasure_id}"))["status"] == status)

    await until(is_reached, within_s=30)
    return await site.admin.get(f"{REQUESTS}/{erasure_id}")


def ledger_in(directory: Path) -> bytes:
    """Of the samples to leave out; the journal of what was sent lies beside it."""
    (ledger,) = (path for path in directory.glob("*.jsonl") if not path.name.endswith(JOURNAL_SUFFIX))
    return ledger.read_bytes()


async def test_models_after_the_erasure_are_those_of_a_client_that_never_had_the_samples(tmp_path: Path) -> None:
    whole_a, whole_b = write_data(tmp_path / "a.npz", 1), write_data(tmp_path / "b.npz", 2)
    async with opened(tmp_path / "one", None) as site, listening(site) as (host, port):
        url = f"http://{host}:{port}"
        a, b = await site.enrol("a", "b")
        async with served(url, a.token, whole_a, tmp_path / "home-a"):
            async with served(url, b.token, whole_b, tmp_path / "home-b"):
                before = await run_to_its_end(site, "first")
            erasure_id = await forget(site, *ERASED)  # b is away
            async with served(url, b.token, whole_b, tmp_path / "home-b"):
                done = await completed(site.admin, erasure_id)
                (run,) = (await site.admin.get("/v1/runs"))["items"]
                after = await head_of(site, run)
            async with served(url, b.token, whole_b, tmp_path / "another-disk"):
                later = await run_to_its_end(site, "second")
        certificate = await site.admin.call("GET", f"{REQUESTS}/{erasure_id}/certificate")
        key = (await site.admin.get("/v1/erasure/discovery"))["public_key"]
    assert [(one["client"], one["num_samples"]) for one in done["exclusions"]] == [("b", 3)]
    ledgers = [ledger_in(tmp_path / home / "ledgers") for home in ("home-b", "another-disk")]
    assert ledgers[0] == ledgers[1] != b""
    statement = check(certificate.content, key.encode()).statement
    assert statement is not None
    workers = statement.predicate.workers
    assert (workers.confirmed, workers.unconfirmed) == (statement.predicate.request.subjects, ())

    never_had = write_data(tmp_path / "b-without.npz", 2, ERASED)
    async with opened(tmp_path / "other", None) as site, listening(site) as (host, port):
        url = f"http://{host}:{port}"
        a, b = await site.enrol("a", "b")
        async with (
            served(url, a.token, whole_a, tmp_path / "home-a"),
            served(url, b.token, never_had, tmp_path / "home-c"),
        ):
            assert [await run_to_its_end(site, key) for key in ("first", "second")] == [after, later]
    assert before != after


async def test_samples_that_are_not_there_fail_the_request_before_anything_is_fenced(tmp_path: Path) -> None:
    data = write_data(tmp_path / "b.npz", 2)
    async with opened(tmp_path / "one", None) as site, listening(site) as (host, port):
        (b,) = await site.enrol("b")
        async with served(f"http://{host}:{port}", b.token, data, tmp_path / "home-b"):
            await run_to_its_end(site, "first")
            erasure_id = await forget(site, 3, 16, 99)

            await reached(site, erasure_id, "failed")
            await run_to_its_end(site, "second")
        found = await site.admin.get(f"{REQUESTS}/{erasure_id}")
    assert found["reason"] == "client b has no samples 16, 99; check the numbers and file again; nothing was fenced"
    assert found["fenced_at"] is None and found["lines"] == []


OWN_TASK = """
import torch
from services.training.task import BUILTIN_TASKS
from services.data.sources import load

class Own:
    def __init__(self, data):
        self._inner = BUILTIN_TASKS["classifier"](load(data))

    def __getattr__(self, name):
        if name == "leave_out":
            raise AttributeError(name)
        return getattr(self._inner, name)
"""


async def test_task_that_cannot_leave_samples_out_gets_no_work_and_the_request_says_why(tmp_path: Path) -> None:
    data = write_data(tmp_path / "b.npz", 2)
    (tmp_path / "own.py").write_text(OWN_TASK)
    async with opened(tmp_path / "one", None) as site, listening(site) as (host, port):
        url = f"http://{host}:{port}"
        (b,) = await site.enrol("b")
        async with served(url, b.token, data, tmp_path / "home-b", task=f"{tmp_path / 'own.py'}:Own"):
            await run_to_its_end(site, "first")
            erasure_id = await forget(site, 3)

            found = await reached(site, erasure_id, "requires_action")
            assert "client b cannot leave its samples out: the task Own cannot" in found["reason"]
            assert found["fenced_at"] is None
        async with served(url, b.token, data, tmp_path / "home-b"):
            await reached(site, erasure_id, "completed")
