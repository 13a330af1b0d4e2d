"""Erasures in the states of a run that once had no end, with real stores, purges and certificates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.engine.messages import CancelRun
from coordinator.store import tables as t
from services.audit.keys import public_pem
from services.audit.verification import check
from tests.support.federation import Federation, federation

pytestmark = pytest.mark.anyio
KNOT: dict[str, Any] = {"kind": "clusters", "num_clusters": 2}


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> Iterator[str | None]:
    yield request.getfixturevalue("postgres_url") if request.param == "postgres" else None


async def certified(f: Federation, erasure_id: Any) -> Any:
    """The erasure, completed, with a certificate that verifies."""
    erasure = await f.wait(
        t.erasures, erasure_id, lambda row: row.status in ("completed", "failed") or row.is_held, timeout_s=60
    )
    assert erasure.status == "completed", erasure.reason
    (certificate,) = await f.rows(t.certificates, t.certificates.c.erasure_id == erasure_id)
    verdict = check(certificate.envelope.encode(), public_pem(f.coordinator.signing_keys.load().public_key()))
    assert verdict.statement is not None, verdict
    return verdict.statement


async def test_a_client_of_a_run_that_still_profiles_is_erased_with_a_certificate_that_verifies(
    url: str | None, tmp_path: Path
) -> None:
    """Beside a healthy run, and two that were given up while they measured their clients."""
    async with federation(tmp_path, "a", "b", "c", "d", url=url) as f:
        f.offline = {"d"}
        f.work()
        cancelled = await f.create_run(name="cancelled", topology=KNOT)
        profiling = await f.create_run(name="profiling", topology=KNOT)
        healthy = await f.create_run(name="healthy", clients=["a", "b", "c"], stop={"rounds": 2})
        await f.wait_for_run(healthy)
        await f.coordinator.shell.handle(CancelRun(cancelled, "no longer wanted"))
        statement = await certified(f, await f.erase("b"))
        assert {cohort.name for cohort in statement.predicate.cohorts} == {"profile", "all"}
        assert f"profiling/{profiling}/profile" in {subject.name for subject in statement.subject}
        f.offline = set()
        assert (await f.wait_for_run(profiling)).status == "completed"


async def test_the_last_clients_are_erased_and_their_run_ends(url: str | None, tmp_path: Path) -> None:
    async with federation(tmp_path, "a", "b", url=url) as f:
        f.work()
        training = {"algorithm": "fedavg", "quorum": 2}
        run_id = await f.create_run(training=training, stop={"rounds": 2})
        await f.wait_for_run(run_id)
        statement = await certified(f, await f.erase("a"))
        assert [cohort.outcome for cohort in statement.predicate.cohorts] == ["rolled-back"]
        assert (await f.wait_for_run(run_id)).status == "completed"
        statement = await certified(f, await f.erase("b"))
        assert not statement.subject
        run = await f.wait_for_run(run_id)
        assert "an erasure left no cohort of the run" in run.reason
        assert not [row for row in await f.rows(t.updates) if row.stored]


async def test_samples_are_erased_from_a_run_of_exact_fun_that_computes_its_rounds_again(
    url: str | None, tmp_path: Path
) -> None:
    async with federation(tmp_path, "a", "b", url=url) as f:
        f.work()
        run_id = await f.create_run(training={"algorithm": "exact_fun", "quantum": 0.5}, stop={"rounds": 3})
        await f.wait_for_run(run_id)
        old = {row.id for row in await f.rows(t.updates, t.updates.c.client_id == f.clients["b"])}
        erasure_id = await f.erase("b", scope="samples", samples={"b": [0]})
        await certified(f, erasure_id)
        clean = [row.id for row in await f.rows(t.checkpoints) if row.superseded_by is None]
        used = await f.rows(t.contributions, t.contributions.c.checkpoint_id.in_(clean))
        assert old and not old & {row.update_id for row in used}
