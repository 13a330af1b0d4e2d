"""Rapid retraining in a whole coordinator: exact like retraining, with curvature only while the line recovers."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.store import tables as t
from tests.integration.test_sample_erasure import made_of
from tests.integration.test_topologies import NAMES, TOPOLOGIES
from tests.support.federation import federation

pytestmark = pytest.mark.anyio
QUICK = {"warmup_rounds": 1, "first_order_every": 2}


@pytest.mark.parametrize("name", ["flat", "tree", "random clusters"])
async def test_a_client_is_forgotten_with_curvature_only_during_the_recovery(name: str, tmp_path: Path) -> None:
    async with federation(tmp_path, *NAMES) as f:
        f.work()
        run_id = await f.create_run(topology=TOPOLOGIES[name], stop={"rounds": 4})
        await f.wait_for_run(run_id)
        assert {grant.optimizer for grant in f.trained} == {"sgd"}
        f.trained.clear()
        erasure = await f.wait_for_erasure(await f.erase("c2", method="rapid", params=QUICK))
        assert erasure.status == "completed", erasure.reason
        await f.wait_for_run(run_id)
        lines = {row.cohort_name: row for row in await f.rows(t.lines) if row.action != "retired"}
        assert lines
        for grant in f.trained:
            line = lines.get(grant.cohort)
            recovers = line is not None and 1 < grant.round <= line.target_round and grant.round % 2 == 0
            assert (grant.optimizer == "adahessian") == recovers, grant
        assert any(grant.optimizer == "adahessian" for grant in f.trained)
        heads = [row.head_id for row in await f.rows(t.cohorts, t.cohorts.c.head_id.is_not(None))]
        of_client = {row.id for row in await f.rows(t.updates, t.updates.c.client_id == f.clients["c2"])}
        assert of_client and not await made_of(f, heads) & of_client
