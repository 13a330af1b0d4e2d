"""What Postgres takes back because it stood in another's way is done again: whoever asked does not notice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest
import sqlalchemy as sa

from coordinator.store import tables as t
from tests.integration.api.site import Site, opened, until
from tests.integration.api.test_browser_sessions import SESSION, Browser

pytestmark = pytest.mark.anyio
REFUSE_EVERY_OTHER = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF nextval('refusals_of_' || TG_TABLE_NAME) % 2 = 1 THEN  -- a sequence goes on where a transaction is taken back
        RAISE EXCEPTION 'could not serialize access' USING ERRCODE = 'serialization_failure';
    END IF;
    RETURN NEW;
END $$;
CREATE SEQUENCE refusals_of_acts;
CREATE SEQUENCE refusals_of_browser_sessions;
CREATE TRIGGER refuse BEFORE INSERT ON acts EXECUTE FUNCTION refuse();
CREATE TRIGGER refuse BEFORE INSERT ON browser_sessions EXECUTE FUNCTION refuse();
"""


@pytest.fixture
async def on_postgres(tmp_path: Path, postgres_url: str) -> AsyncIterator[Site]:
    async with opened(tmp_path, postgres_url) as site:
        yield site


async def execute(site: Site, script: str) -> None:
    async with site.coordinator.database.write() as connection:
        driver = (await connection.get_raw_connection()).driver_connection
        assert driver is not None
        await driver.execute(script)


async def test_accounts_sessions_and_links_are_made_although_each_is_taken_back_once(on_postgres: Site) -> None:
    site = on_postgres
    await site.enrol("a")
    officer = await site.staff("compliance")
    path = f"/v1/federations/{site.federation_id}"
    filed = await officer.post(
        "/v1/erasure-requests", {"subjects": ["a"]}, headers={"Idempotency-Key": "one"}, expect=202
    )

    async def is_completed() -> bool:
        found = await officer.get(f"/v1/erasure-requests/{filed['id']}")
        return bool(found["status"] == "completed")

    await until(is_completed)
    await execute(site, REFUSE_EVERY_OTHER)
    await site.federation("another")
    (b,) = await site.enrol("b")
    await site.admin.post(f"/v1/clients/{b.client_id}/credentials")
    issued = await site.admin.post(f"{path}/credentials", {"role": "viewer"})
    browser = Browser(site)
    for token in (officer.token, site.admin.token):  # in a federation's log of acts, and in none
        assert (await browser.sign_in(token)).status_code == 201
        assert (await browser.call("DELETE", SESSION)).status_code == 204
    await browser.http.aclose()
    assert (await site.admin.call("PATCH", path, json={"four_eyes": "all"})).status_code == 200
    assert (await site.admin.call("DELETE", f"/v1/credentials/{issued['id']}")).status_code == 204
    link = await officer.post(f"/v1/erasure-requests/{filed['id']}/hand-over")
    spent = await site.http.post(f"/v1/hand-overs/{link['id']}:open", json={"secret": link["secret_shown_once"]})
    assert spent.status_code == 200, spent.text


async def test_a_rotation_that_deadlocks_with_another_transaction_is_made_when_that_is_over(on_postgres: Site) -> None:
    site = on_postgres
    (a,) = await site.enrol("a")
    client_id = UUID(a.client_id)
    mine = t.credentials.c.client_id == client_id
    waiting = sa.text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    async with site.coordinator.database.write() as connection:
        await connection.execute(sa.select(t.clients.c.id).where(t.clients.c.id == client_id).with_for_update())
        rotating = asyncio.create_task(site.admin.call("POST", f"/v1/clients/{a.client_id}/credentials"))

        async def is_waiting() -> bool:
            return bool((await connection.execute(waiting)).scalar_one())

        await until(is_waiting)
        await connection.execute(
            sa.select(t.credentials.c.id).where(mine).with_for_update()
        )  # it waits for longer, and is the one that Postgres ends
    answer = await rotating
    assert answer.status_code == 201, answer.text
    async with site.coordinator.database.read() as connection:
        found = (await connection.execute(sa.select(t.credentials.c.revoked_at).where(mine))).all()
    assert len(found) == 2 and sum(one.revoked_at is None for one in found) == 1
