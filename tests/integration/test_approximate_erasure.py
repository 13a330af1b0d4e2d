"""Approximate methods in a whole coordinator: who takes part, what is left, and what happens when they cannot."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from coordinator.engine.messages import ClaimTasks
from coordinator.store import tables as t
from services.core.errors import Rejected
from services.methods.catalogue import METHODS
from tests.integration.api.site import until
from tests.integration.test_topologies import NAMES, TOPOLOGIES
from tests.support.federation import Federation, federation

pytestmark = pytest.mark.anyio


async def forget(f: Federation, name: str, method: str, **changes: Any) -> Any:
    erasure_id = await f.erase(name, method=method, guarantee="approximate", **changes)
    return await f.wait(t.erasures, erasure_id, lambda row: row.status in ("completed", "failed", "requires_action"))


async def assert_nothing_is_left_of(f: Federation, name: str) -> None:
    own = await f.rows(t.updates, t.updates.c.client_id == f.clients[name], t.updates.c.digest.is_not(None))
    assert own and not any(row.stored for row in own)
    for row in own:
        assert not await f.is_stored(row.digest)
    tainted = await f.rows(t.checkpoints, t.checkpoints.c.superseded_by.is_not(None))
    assert tainted and not any(row.stored for row in tainted)
    served = {row.digest for row in await f.rows(t.checkpoints, t.checkpoints.c.superseded_by.is_(None))}
    for row in tainted:
        assert row.digest in served or not await f.is_stored(row.digest)


async def kinds_by_round(f: Federation, epoch: int) -> dict[int, str]:
    return {row.round: row.kind for row in await f.rows(t.checkpoints, t.checkpoints.c.epoch == epoch)}


async def test_federaser_rebuilds_the_line_from_what_the_others_sent(tmp_path: Path) -> None:
    async with federation(tmp_path, *NAMES) as f:
        f.work()
        run_id = await f.create_run(stop={"rounds": 4})
        await f.wait_for_run(run_id)
        f.trained.clear()
        erasure = await forget(f, "c2", "federaser", recovery_rounds=1)
        assert erasure.status == "completed", erasure.reason
        assert erasure.chosen == "federaser"
        run = await f.wait_for_run(run_id)
        assert run.status == "completed"
        assert await kinds_by_round(f, 1) == {
            1: "forgotten",
            2: "forgotten",
            3: "forgotten",
            4: "forgotten",
            5: "aggregate",
        }
        assert {(one.client, one.round) for one in f.trained} == {
            (name, number) for name in NAMES if name != "c2" for number in (2, 3, 4, 5)
        }
        await assert_nothing_is_left_of(f, "c2")


@pytest.mark.parametrize("name", ["random clusters", "tree"])
async def test_only_lines_with_the_client_take_part(name: str, tmp_path: Path) -> None:
    """From a sealed history, whose last rounds may not have been sealed yet."""
    async with federation(tmp_path, *NAMES) as f:
        f.work()
        kept: dict[str, Any] = {"retention": {"updates": "none"}, "history": {"updates": {}}}
        run_id = await f.create_run(topology=TOPOLOGIES[name], stop={"rounds": 3}, **kept)
        await f.wait_for_run(run_id)
        before = await f.heads(run_id)
        erasure = await forget(f, "c2", "federaser")
        assert erasure.status == "completed", erasure.reason
        await f.wait_for_run(run_id)
        after = await f.heads(run_id)
        touched = {row.cohort_name for row in await f.rows(t.lines)}
        assert touched
        for cohort, digest in before.items():
            assert (after.get(cohort) == digest) == (cohort not in touched | {"merged"}), cohort
        await assert_nothing_is_left_of(f, "c2")


@pytest.mark.parametrize(
    ("method", "params", "kind"),
    [
        ("pga", {"radius": 5.0, "stop_accuracy": 0.1}, "ascend"),
        ("fedforget", {"rounds": 2, "teacher_b": True}, "distil"),
        ("not", {"layers": ["w"]}, None),
    ],
)
async def test_what_only_the_leaver_can_do_is_asked_of_it_and_of_nobody_else(
    method: str, params: dict[str, Any], kind: str | None, tmp_path: Path
) -> None:
    async with federation(tmp_path, *NAMES) as f:
        f.work()
        run_id = await f.create_run(stop={"rounds": 3})
        await f.wait_for_run(run_id)
        f.trained.clear()
        erasure = await forget(f, "c2", method, params=params, recovery_rounds=1)
        assert erasure.status == "completed", erasure.reason
        await f.wait_for_run(run_id)
        assert set(f.asked) == ({("c2", kind)} if kind is not None else set())
        assert {one.client for one in f.trained if one.client != "c2"} == set(NAMES) - {"c2"}
        kinds = await kinds_by_round(f, 1)
        assert [kind for _, kind in sorted(kinds.items())] == ["forgotten", "aggregate"]
        await assert_nothing_is_left_of(f, "c2")
        with pytest.raises(Rejected, match="erased"):
            await f.coordinator.shell.handle(ClaimTasks(f.clients["c2"]))


@pytest.mark.parametrize(("success", "action"), [(0.05, "unlearned"), (0.15, "rolled-back")])
async def test_the_certificate_carries_the_audit_and_a_failed_one_leads_to_retraining(
    success: float, action: str, tmp_path: Path
) -> None:
    async with federation(tmp_path, *NAMES) as f:
        f.work()
        run_id = await f.create_run(stop={"rounds": 3})
        await f.wait_for_run(run_id)
        f.scores["c2"] = {
            "backdoor_success_rate": success,
            "before_backdoor_success_rate": 0.9,
            "backdoor_samples": 50.0,
        }
        audit = {"thresholds": {"max_backdoor_success": 0.1}}  # of model custom, so that nothing is granted for chance
        changes: dict[str, Any] = {"params": {"layers": ["w"]}, "audit": audit, "fallback": "retrain"}
        erasure = await forget(f, "c2", "not", recovery_rounds=1, **changes)
        assert erasure.status == "completed", erasure.reason
        assert (await f.wait_for_run(run_id)).status == "completed"
        (line,) = await f.rows(t.lines)
        (asked,) = await f.rows(t.tasks, t.tasks.c.kind == "audit", t.tasks.c.client_id == f.clients["c2"])
        assert line.action == action and asked.work["before"] == line.head_before
        (certificate,) = await f.rows(t.certificates)
        payload = json.loads(base64.b64decode(json.loads(certificate.envelope)["payload"]))["predicate"]
        is_mended = action == "unlearned"
        assert payload["guarantee"]["kind"] == ("approximate" if is_mended else "exact")
        assert [figure["value"] for figure in payload["audit"]] == ([50.0, success] if is_mended else [])
        assert [figure["reference"] for figure in payload["audit"]] == ([None, 0.9] if is_mended else [])
        for figure in payload["audit"]:
            assert figure["name"].startswith(f"all/{payload['request']['subjects'][0]}/")
        await assert_nothing_is_left_of(f, "c2")


async def test_a_leaver_that_does_not_answer_leads_to_the_operator(tmp_path: Path) -> None:
    async with federation(tmp_path, *NAMES) as f:
        f.work()
        run_id = await f.create_run(stop={"rounds": 3})
        await f.wait_for_run(run_id)
        f.offline.add("c2")
        params = {"radius": 5.0, "stop_accuracy": 0.1, "deadline_s": 0.2}
        erasure_id = await f.erase("c2", method="pga", guarantee="approximate", params=params)
        erasure = await f.wait_for_erasure(erasure_id, "requires_action")
        assert "no usable answer from c2" in erasure.reason
        assert (await f.heads(run_id))["all"] is None


@pytest.mark.parametrize(
    ("method", "params", "kept"),
    [("sifu", {"noise": 0.5}, {"distances": True}), ("fedrecovery", {}, {"residuals": True})],
)
async def test_methods_that_live_on_what_the_run_kept(
    method: str, params: dict[str, Any], kept: dict[str, Any], tmp_path: Path
) -> None:
    async with federation(tmp_path, *NAMES) as f:
        f.work()
        bare = await f.create_run(name="bare", stop={"rounds": 2})
        await f.wait_for_run(bare)
        with pytest.raises(Rejected, match="run with history"):
            await f.erase("c2", method=method, guarantee="approximate")
    async with federation(tmp_path / "kept", *NAMES) as f:
        f.work()
        run_id = await f.create_run(stop={"rounds": 3}, history=kept)
        await f.wait_for_run(run_id)
        vectors = [row.output for row in await f.rows(t.jobs, t.jobs.c.kernel == "accumulate_residuals")]
        erasure = await forget(f, "c2", method, params=params)
        assert erasure.status == "completed", erasure.reason
        (cohort,) = await f.rows(t.cohorts, t.cohorts.c.run_id == run_id)
        assert (cohort.round, cohort.residuals) == (3, None)
        noisy = await f.rows(t.jobs, t.jobs.c.kernel.in_(METHODS[method].noisy_kernels))
        assert noisy and not any(row.params for row in noisy)
        for digest in vectors:
            assert not await f.is_stored(digest)
        await assert_nothing_is_left_of(f, "c2")


async def test_the_seed_of_a_method_that_was_given_up_for_retraining_is_forgotten_too(tmp_path: Path) -> None:
    async with federation(tmp_path, *NAMES) as f:
        f.work()
        run_id = await f.create_run(stop={"rounds": 3}, history={"distances": True})
        await f.wait_for_run(run_id)
        audit = {"thresholds": {"max_backdoor_success": 0.1}}
        erasure = await forget(f, "c2", "sifu", params={"noise": 0.5}, audit=audit, fallback="retrain")
        assert erasure.status == "completed", erasure.reason
        assert [row.action for row in await f.rows(t.lines)] == ["rolled-back"]
        noisy = await f.rows(t.jobs, t.jobs.c.kernel == "add_gaussian_noise")
        assert noisy and not any(row.params for row in noisy)


async def test_a_second_erasure_walks_through_the_calibrated_updates(tmp_path: Path) -> None:
    async with federation(tmp_path, *NAMES) as f:
        f.work()
        run_id = await f.create_run(stop={"rounds": 3})
        await f.wait_for_run(run_id)
        first = await forget(f, "c2", "federaser")
        assert first.status == "completed", first.reason
        await f.wait_for_run(run_id)
        f.trained.clear()
        second = await forget(f, "c3", "federaser")
        assert second.status == "completed", second.reason
        assert {one.client for one in f.trained} == set(NAMES) - {"c2", "c3"}
        assert await kinds_by_round(f, 2) == {1: "forgotten", 2: "forgotten", 3: "forgotten"}
        for name in ("c2", "c3"):
            await assert_nothing_is_left_of(f, name)


async def test_an_exact_erasure_after_an_approximate_one_goes_back_behind_it(tmp_path: Path) -> None:
    """What a method made of a model still holds everybody else who was in that model."""
    async with federation(tmp_path, *NAMES) as f:
        f.work()
        run_id = await f.create_run(stop={"rounds": 3})
        await f.wait_for_run(run_id)
        first = await forget(f, "c2", "not", params={"layers": ["w"]}, recovery_rounds=1)
        assert first.status == "completed", first.reason
        await f.wait_for_run(run_id)
        second = await f.wait_for_erasure(await f.erase("c3"))
        assert second.status == "completed", second.reason
        (line,) = [row for row in await f.rows(t.lines) if row.erasure_id == second.id]
        assert (line.action, line.rollback_digest) == ("rolled-back", f.init)
        (cohort,) = await f.rows(t.cohorts, t.cohorts.c.run_id == run_id)
        assert await lineage_clients(f, cohort.head_id) == set(NAMES) - {"c2", "c3"}


async def lineage_clients(f: Federation, checkpoint_id: UUID) -> set[str]:
    from coordinator.store import lineage

    async with f.coordinator.database.read() as connection:
        return set((await lineage.descent(connection, checkpoint_id)).clients)


async def test_a_method_without_its_history_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    async with federation(tmp_path, *NAMES) as f:
        f.work()
        run_id = await f.create_run(stop={"rounds": 3}, retention={"updates": 1})
        await f.wait_for_run(run_id)
        for row in await f.rows(t.jobs, t.jobs.c.kind == "collect-updates"):
            await f.wait(t.jobs, row.id, lambda job: job.status == "done")
        before = await f.heads(run_id)
        with pytest.raises(Rejected, match="stored") as refused:
            await f.erase("c2", method="federaser", guarantee="approximate")
        assert refused.value.code == "method-unavailable"
        with pytest.raises(Rejected, match="approximate"):
            await f.erase("c2", method="not")
        assert not await f.rows(t.erasures) and await f.heads(run_id) == before


async def test_an_exact_erasure_after_an_approximate_one_leaves_no_update_that_saw_the_client(tmp_path: Path) -> None:
    """FedForget's first model is never published; what the others trained on it has the second leaver in it."""
    async with federation(tmp_path, *NAMES) as f:
        f.work()
        run_id = await f.create_run(stop={"rounds": 3})
        await f.wait_for_run(run_id)
        first = await forget(f, "c2", "fedforget", params={"rounds": 2}, recovery_rounds=1)
        assert first.status == "completed", first.reason
        await f.wait_for_run(run_id)
        second = await f.wait_for_erasure(await f.erase("c1"))
        assert second.status == "completed", second.reason
        (cohort,) = await f.rows(t.cohorts, t.cohorts.c.run_id == run_id)
        saw = await f.rows(t.updates, t.updates.c.epoch < cohort.epoch, t.updates.c.digest.is_not(None))
        left = {row.digest for row in await f.rows(t.updates, t.updates.c.epoch == cohort.epoch)}
        unpublished = {row.base_digest for row in saw} - {row.digest for row in await f.rows(t.checkpoints)}
        assert unpublished, "no update was trained on a model that was never published"
        for row in [row for row in saw if row.base_digest in unpublished]:
            assert row.digest in left or not await f.is_stored(row.digest)


async def test_two_requests_that_mend_one_cohort_are_both_audited_and_certified(tmp_path: Path) -> None:
    """The second cuts the cohort while the first waits for the answers to its audit."""
    async with federation(tmp_path, *NAMES) as f:
        f.work()
        run_id = await f.create_run(stop={"rounds": 3})
        await f.wait_for_run(run_id)
        audit = {"thresholds": {"max_backdoor_success": 0.1}}
        changes: dict[str, Any] = {"params": {"layers": ["w"]}, "audit": audit, "recovery_rounds": 1}
        for name in ("c1", "c2"):
            rates = {"backdoor_success_rate": 0.05, "before_backdoor_success_rate": 0.9, "backdoor_samples": 50.0}
            f.scores[name] = rates
        f.stop_working("c2")
        first = await f.erase("c2", method="not", guarantee="approximate", **changes)
        is_open = (t.rounds.c.kind == "audit") & (t.rounds.c.status == "open")
        await until(lambda: _found(f, t.rounds, is_open))
        f.stop_working("c1")
        second = await f.erase("c1", method="not", guarantee="approximate", **changes)
        is_cut = (t.lines.c.erasure_id == second) & t.lines.c.done_at.is_not(None)
        await until(lambda: _found(f, t.lines, is_cut))
        f.work("c1", "c2")
        for erasure_id in (first, second):
            assert (await f.wait_for_erasure(erasure_id)).status == "completed"
        for row in await f.rows(t.certificates):
            payload = json.loads(base64.b64decode(json.loads(row.envelope)["payload"]))["predicate"]
            assert payload["guarantee"]["kind"] == "approximate"
            assert {figure["value"] for figure in payload["audit"]} == {50.0, 0.05}
        for name in ("c1", "c2"):
            await assert_nothing_is_left_of(f, name)


async def _found(f: Federation, table: sa.Table, *where: sa.ColumnElement[bool]) -> bool:
    return bool(await f.rows(table, *where))
