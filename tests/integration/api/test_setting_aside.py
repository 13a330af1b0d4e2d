"""One broken run, row, job or request is set aside, counted and named; its neighbours go on, and it comes back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import numpy as np
import pytest
import sqlalchemy as sa

from coordinator.engine.entities import Job
from coordinator.store import due, warm
from coordinator.store import tables as t
from coordinator.store.rows import to_row
from tests.integration.api.site import Actor, Site
from tests.integration.api.site import until as until_within

pytestmark = pytest.mark.anyio
until = partial(until_within, within_s=60.0)
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
OTHER_MODEL = {"layer.weight": np.ones((2, 3), np.float32), "layer.bias": np.ones(2, np.float32)}


@pytest.fixture(autouse=True)
def _soon_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.runtime.set_aside.FIRST_PAUSE_S", 0.05)


async def execute(site: Site, statement: Any) -> None:
    async with site.coordinator.database.write() as connection:
        await connection.execute(statement)
        await warm.renew(connection, sa.true())


async def rows(site: Site, statement: Any) -> list[Any]:
    async with site.coordinator.database.read() as connection:
        return list(await connection.execute(statement))


async def break_spec(site: Site, run: Any) -> Any:
    """Make a run's row unreadable; returns what it was."""
    ((spec,),) = await rows(site, sa.select(t.runs.c.spec).where(t.runs.c.id == UUID(run["id"])))
    await execute(site, t.runs.update().where(t.runs.c.id == UUID(run["id"])).values(spec={"name": "broken"}))
    return spec


async def mend_spec(site: Site, run: Any, spec: Any) -> None:
    await execute(site, t.runs.update().where(t.runs.c.id == UUID(run["id"])).values(spec=spec))


async def both_runs(site: Site, *clients: str) -> tuple[list[Actor], Any, Any]:
    agents = await site.enrol(*clients)
    first = await site.start_run("first", name="first", clients=[clients[0]])
    last = await site.start_run("last", name="last", clients=[clients[-1]])
    return agents, first, last


async def is_completed(site: Site, run: Any) -> bool:
    return bool((await site.admin.get(f"/v1/runs/{run['id']}"))["status"] == "completed")


async def metrics(site: Site) -> str:
    return (await site.http.get("/metrics")).text


async def test_a_run_that_cannot_be_read_does_not_stop_the_clockwork_for_the_others(site: Site) -> None:
    (a, b), broken, sound = await both_runs(site, "a", "b")
    await a.claim()
    await b.claim()
    spec = await break_spec(site, broken)
    await execute(site, t.tasks.update().values(due_at=LONG_AGO))  # both leases have run out
    await b.train(1.0)  # which only the clockwork hands out again
    await until(lambda: is_completed(site, sound))
    assert site.coordinator.set_aside.why(UUID(broken["id"]))
    assert 'lethe_set_aside_now{kind="LeaseRanOut"} 1.0' in await metrics(site)
    ready = await site.http.get("/readyz")
    assert ready.status_code == 200, ready.text
    await mend_spec(site, broken, spec)
    await a.train(1.0)
    await until(lambda: is_completed(site, broken))
    assert site.coordinator.set_aside.why(UUID(broken["id"])) is None


async def test_a_run_that_cannot_be_read_hides_no_lease_of_others_from_when_the_clock_was_ahead(site: Site) -> None:
    (a, b), broken, sound = await both_runs(site, "a", "b")
    await a.claim()
    (task,) = await b.claim()
    await break_spec(site, broken)
    async with site.coordinator.database.write() as connection:  # one: the clockwork looks as well
        await connection.execute(t.tasks.update().values(due_at=datetime.now(UTC) + timedelta(days=1)))
        await warm.renew(connection, sa.true())
        found = await due.leases_from_ahead(connection, datetime.now(UTC))
    assert [(str(one.about), str(one.owner)) for one in found] == [(task["task_id"], sound["id"])]


async def test_a_run_that_cannot_be_read_does_not_hide_the_others_in_lists(site: Site) -> None:
    _, broken, sound = await both_runs(site, "a", "b")
    await break_spec(site, broken)
    assert [run["id"] for run in (await site.admin.get("/v1/runs"))["items"]] == [sound["id"]]
    assert 'lethe_set_aside_total{kind="unreadable run"} 1.0' in await metrics(site)


async def test_background_work_that_dies_is_named_and_comes_back(small_site: Site) -> None:
    health = small_site.coordinator.supervisor.health["clockwork"]
    await execute(small_site, sa.text("ALTER TABLE rounds RENAME TO hidden"))
    await until(lambda: health.num_restarts > 0)
    response = await small_site.http.get("/readyz")
    assert response.status_code == 503
    assert response.json()["checks"]["clockwork"] == "it died of OperationalError; it is started again"
    shown = await metrics(small_site)
    assert 'lethe_background_up{task="clockwork"} 0.0' in shown
    assert 'lethe_background_up{task="chores"} 1.0' in shown
    assert 'lethe_background_restarts_total{task="clockwork"} 0.0' not in shown
    await execute(small_site, sa.text("ALTER TABLE hidden RENAME TO rounds"))
    await until(lambda: not small_site.coordinator.supervisor.down())
    assert (await small_site.http.get("/readyz")).status_code == 200


async def test_many_broken_leases_leave_room_for_those_of_others(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.store.due.DUE_AT_ONCE", 1)
    (a, b), broken, sound = await both_runs(site, "a", "b")
    await a.claim()
    await b.claim()
    await break_spec(site, broken)
    await execute(site, t.tasks.update().values(due_at=LONG_AGO))
    await b.train(1.0)
    await until(lambda: is_completed(site, sound))


async def test_a_claim_without_one_runs_model_gets_the_tasks_of_the_other_runs(site: Site) -> None:
    (a,) = await site.enrol("a")
    other = await site.admin.put_blob(OTHER_MODEL, params={"federation_id": site.federation_id})
    broken = await site.start_run("first", name="first", init=other)
    sound = await site.start_run("last", name="last")
    await execute(site, t.blobs.delete().where(t.blobs.c.digest == other))
    assert [task["run_name"] for task in await a.claim()] == ["last"]
    found = await site.admin.get(f"/v1/runs/{broken['id']}")
    assert f"model {other} of run first is not stored here any more; upload it again" in found["reason"]
    assert (await site.admin.get(f"/v1/runs/{sound['id']}"))["reason"] is None
    assert 'lethe_set_aside_total{kind="claim"}' in await metrics(site)
    await site.admin.put_blob(OTHER_MODEL, params={"federation_id": site.federation_id})
    await until(lambda: _claims(a, "first"))
    assert (await site.admin.get(f"/v1/runs/{broken['id']}"))["reason"] is None


async def _claims(agent: Actor, name: str) -> bool:
    return [task["run_name"] for task in await agent.claim(1)] == [name]


async def test_a_client_with_a_run_that_cannot_be_read_opens_its_session_and_works_in_others(
    site: Site, capfd: pytest.CaptureFixture[str]
) -> None:
    (a,), broken, sound = await both_runs(site, "a")
    assert len(await a.claim()) == 2
    await break_spec(site, broken)
    await a.open_session()
    assert "session.opened-without-tasks" in "".join(capfd.readouterr()), "whoever operates it is told"
    await execute(site, t.tasks.update().where(t.tasks.c.run_id == UUID(sound["id"])).values(due_at=LONG_AGO))
    await a.train(1.0)
    await until(lambda: is_completed(site, sound))


async def erase(site: Site, name: str) -> str:
    body = {"federation_id": site.federation_id, "subjects": [name]}
    filed = await site.admin.post("/v1/erasure-requests", body, headers={"Idempotency-Key": name}, expect=202)
    return f"/v1/erasure-requests/{filed['id']}"


async def test_a_request_that_cannot_be_reviewed_does_not_hold_up_others(site: Site) -> None:
    agents = await site.enrol("a1", "a2", "b1", "b2")
    broken = await site.start_run("first", name="first", clients=["a1", "a2"])
    sound = await site.start_run("last", name="last", clients=["b1", "b2"])
    for agent in agents:
        await agent.train(1.0)
    await until(lambda: is_completed(site, broken))
    await until(lambda: is_completed(site, sound))
    hindered = await erase(site, "a1")
    await until(lambda: _has_status(site, hindered, "executing"))
    await break_spec(site, broken)
    other = await erase(site, "b1")
    await agents[3].train(1.0)
    await until(lambda: _has_status(site, other, "completed"))
    assert (await site.admin.get(hindered))["reason"].startswith("set aside: ")


async def _has_status(site: Site, path: str, status: str) -> bool:
    return bool((await site.admin.get(path))["status"] == status)


def poison(number: int, kind: str, params: Any) -> Job:
    at = LONG_AGO + timedelta(seconds=number)
    return Job(UUID(int=number), None, None, UUID(int=0), 0, kind, None, params, [], "ready", at)  # type: ignore[arg-type]


async def test_broken_jobs_do_not_hold_up_those_behind_them(site: Site) -> None:
    owner = UUID(site.federation_id)
    kinds = ("post", "fence", "purge", "notify", "keep-updates", "collect-updates")
    jobs = [poison(number, kind, {"message": "Nonsense"}) for number, kind in enumerate(kinds, 1)]
    await execute(site, t.jobs.insert().values([{**to_row(job), "federation_id": owner} for job in jobs]))
    (a,), run, _ = await both_runs(site, "a")
    await a.claim()
    await execute(site, t.tasks.update().values(due_at=LONG_AGO))
    await until(lambda: _is_set_aside(site, len(kinds)))
    assert 'lethe_jobs_set_aside{kind="post"} 1.0' in await metrics(site)
    for task in await a.claim():
        assert (await a.submit(task, await a.put_blob(OTHER_MODEL, task=task))).status_code == 200
    await until(lambda: is_completed(site, run))
    ready = await site.http.get("/readyz")
    assert ready.status_code == 200, ready.text


async def _is_set_aside(site: Site, count: int) -> bool:
    found = await rows(site, sa.select(t.jobs.c.error, t.jobs.c.due_at).where(t.jobs.c.num_failures > 0))
    return len(found) == count and all(row.error and row.due_at for row in found)


async def test_a_job_whose_row_cannot_be_read_does_not_hold_up_those_behind_it(small_site: Site) -> None:
    job = {**to_row(poison(1, "post", {})), "federation_id": UUID(small_site.federation_id)}
    await execute(small_site, t.jobs.insert().values(job))
    await execute(small_site, sa.text("UPDATE jobs SET params = 'not json'"))
    (a,), run, _ = await both_runs(small_site, "a")
    for task in await a.claim():
        await a.submit(task, await a.put_blob(OTHER_MODEL, task=task))
    await until(lambda: is_completed(small_site, run))
    assert 'kind="unreadable job"' in await metrics(small_site)
    mended = {"message": "SettleRun", "run_id": run["id"]}
    await execute(small_site, t.jobs.update().where(t.jobs.c.id == job["id"]).values(params=mended))
    await until(lambda: _has_no_job(small_site))


async def _has_no_job(site: Site) -> bool:
    return not await rows(site, sa.select(t.jobs.c.id).where(t.jobs.c.status.in_(("ready", "leased"))))
