"""A run that is started from a model with a leaver in it at the moment of the fence: both may share a transaction."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from coordinator.engine.messages import CreateRun, FenceErasure
from coordinator.store import tables as t
from services.core.errors import Rejected
from services.wire.v1.runs import RunSpec
from tests.integration.test_topologies import NAMES, TOPOLOGIES
from tests.support.federation import federation, new_id

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("name", sorted(TOPOLOGIES))
@pytest.mark.parametrize("is_run_first", [True, False])
async def test_no_run_begins_with_a_model_that_a_fence_of_the_same_transaction_takes_out_of_use(
    is_run_first: bool, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with federation(tmp_path, *NAMES) as f:
        f.work()
        first = await f.create_run(stop={"rounds": 2})
        await f.wait_for_run(first)
        (head,) = (await f.heads(first)).values()
        spec = {"name": "second", "model": {"name": "custom"}, "init": head, "topology": TOPOLOGIES[name]}
        starting = CreateRun(new_id(), f.id, RunSpec.model_validate({**spec, "stop": {"rounds": 2}}))
        handle = f.coordinator.shell.handle

        async def together(message: Any, act: Any = None) -> Any:
            if not isinstance(message, FenceErasure):
                return await handle(message, act)
            both = [handle(starting), handle(message, act)]
            answers = await asyncio.gather(*(both if is_run_first else reversed(both)), return_exceptions=True)
            return answers[1 if is_run_first else 0]

        monkeypatch.setattr(f.coordinator.shell, "handle", together)
        done = await f.wait_for_erasure(await f.erase("c2"))
        assert done.status == "completed", done.reason
        for model in await f.rows(t.checkpoints, t.checkpoints.c.digest == head):
            assert model.superseded_by == done.id
        started = await f.rows(t.runs, t.runs.c.id == starting.run_id)
        assert [run.status for run in started] == (["failed"] if is_run_first else [])
        with pytest.raises(Rejected, match="superseded"):
            await handle(CreateRun(new_id(), f.id, starting.spec))
