"""The log of acts: what is in it, who may read it, that it forgets with its owners and still verifies."""

from __future__ import annotations

import io
import json
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from coordinator.runtime.doctor import acts as doctor
from coordinator.runtime.doctor.findings import Installation as Examined
from coordinator.store import tables as t
from services.audit.acts import ActsInvalid, Found, read_export, to_line
from services.audit.keys import key_id, read_public_keys
from services.wire.v1.acts import RecordedAct
from tests.integration.api.site import Actor, Site, code_of, opened, until
from tests.integration.api.test_erasure_over_http import NAMES, REQUESTS, completed, file, run_to_its_end, working

pytestmark = pytest.mark.anyio


def path(site: Site) -> str:
    return f"/v1/federations/{site.federation_id}/acts"


async def acts(site: Site, num: int, by: Actor | None = None, **query: Any) -> list[dict[str, Any]]:
    """Once there are so many."""
    found: list[dict[str, Any]] = []

    async def are_there() -> bool:
        found[:] = (await (by or site.admin).get(path(site), params={"limit": 200, **query}))["items"]
        return len(found) >= num

    await until(are_there)
    return found


def said(act: dict[str, Any], says: str) -> list[dict[str, str] | None]:
    pairs = zip(act["entry"]["parts"], act["opened"], strict=True)
    return [words and words["content"] for part, words in pairs if part["says"] == says]


async def exported(site: Site, num: int) -> bytes:
    """Once the head is of so many."""
    listed: list[RecordedAct] = []
    head = b""

    async def is_signed() -> bool:
        nonlocal head
        answer = await site.admin.call("GET", f"{path(site)}/head")
        if answer.status_code != 200:
            return False
        head = answer.content
        listed[:] = [RecordedAct.model_validate(one, strict=False) for one in await acts(site, num)]
        return bool(listed) and f'"seq":{listed[-1].entry.seq}' in _payload(head)

    await until(is_signed)
    return b"".join(map(to_line, listed)) + head


def _payload(head: bytes) -> str:
    import base64

    return base64.b64decode(json.loads(head)["payload"]).decode()


async def verified(site: Site, export: bytes) -> Found:
    pem = (await site.admin.get("/v1/erasure/discovery"))["public_key"].encode()
    return read_export(io.BytesIO(export), {key_id(key): key for key in read_public_keys(pem)})


async def test_who_did_what_when_and_from_where_is_recorded(site: Site) -> None:
    issued = {"role": "operator", "label": "Dr. Weber"}
    answer = await site.admin.post(f"/v1/federations/{site.federation_id}/credentials", issued)
    operator = site.actor(answer["token"])
    await operator.post(f"/v1/federations/{site.federation_id}/clients", {"name": "hospital-a"})
    found = await acts(site, 3)
    assert [act["entry"]["act"] for act in found] == ["federation.created", "credential.issued", "client.enrolled"]
    assert [act["entry"]["seq"] for act in found] == [1, 2, 3]
    assert [act["entry"]["role"] for act in found] == ["admin", "admin", "operator"]
    assert found[1]["entry"]["about"] == {"kind": "credential", "id": answer["id"]}
    assert said(found[1], "words") == [{"text": "operator Dr. Weber"}]
    assert said(found[2], "who") == [{"name": "Dr. Weber", "credential": answer["id"], "from": "127.0.0.1"}]
    (whom,) = said(found[2], "whom")
    assert whom is not None and whom["name"] == "hospital-a"


async def test_runs_and_requests_are_recorded_with_what_they_are_about(small_site: Site) -> None:
    site = small_site
    clients = await site.enrol(*NAMES)
    run = await site.start_run("r")
    for step in ("pause", "resume", "cancel"):
        await site.admin.post(f"/v1/runs/{run['id']}/{step}", expect=200)
    request = (await file(site.admin, "a", federation_id=site.federation_id, needs_approval=True)).json()["id"]
    await site.admin.post(f"{REQUESTS}/{request}/deny", {"reason": "it is =cmd|' /C calc'!A0"}, expect=200)
    await site.admin.post(f"/v1/clients/{clients[1].client_id}/credentials")
    assert (await site.admin.call("DELETE", f"/v1/clients/{clients[1].client_id}")).status_code == 204
    found = await acts(site, 1 + len(NAMES) + 8)
    names = [act["entry"]["act"] for act in found[1 + len(NAMES) :]]
    assert names[:6] == [
        *("run.created", "run.paused", "run.resumed", "run.cancelled"),
        *("erasure.filed", "erasure.denied"),
    ]
    assert names[6:] == ["client.rotated", "client.removed"]
    about = await acts(site, 2, about=request)
    assert [act["entry"]["act"] for act in about] == ["erasure.filed", "erasure.denied"]
    assert said(about[1], "words") == [{"text": "it is =cmd|' /C calc'!A0"}]
    newest = (await site.admin.get(path(site), params={"newest_first": True, "limit": 1}))["items"]
    assert newest[0]["entry"]["act"] == "client.removed"


async def test_what_is_refused_or_repeated_is_no_act(small_site: Site) -> None:
    site = small_site
    await site.enrol(*NAMES)
    again = await site.admin.call("POST", f"/v1/federations/{site.federation_id}/clients", json={"name": "a"})
    assert code_of(again) == "name-taken"
    run = await site.start_run("once")
    assert (await site.start_run("once"))["id"] == run["id"]
    await site.admin.call("POST", f"/v1/runs/{run['id']}/pause", headers={"If-Match": '"77"'})
    await site.admin.post(f"/v1/runs/{run['id']}/cancel", expect=200)
    found = await acts(site, 3 + len(NAMES))
    assert [act["entry"]["act"] for act in found[1 + len(NAMES) :]] == ["run.created", "run.cancelled"]


async def test_only_compliance_and_admins_read_it_and_only_of_their_federation(small_site: Site) -> None:
    site = small_site
    (client,) = await site.enrol("a")
    for role, may in (("viewer", False), ("operator", False), ("compliance", True), ("admin", True)):
        answer = await (await site.staff(role)).call("GET", path(site))
        assert answer.status_code == (200 if may else 403), role
    assert code_of(await client.call("GET", path(site))) == "forbidden"
    elsewhere = await site.staff("compliance", await site.federation("elsewhere"))
    for part in ("", "/head"):
        assert code_of(await elsewhere.call("GET", path(site) + part)) == "not-found"


async def test_an_export_verifies_and_any_edit_of_the_rows_is_found(site: Site) -> None:
    await site.enrol(*NAMES)
    export = await exported(site, 1 + len(NAMES))
    assert (await verified(site, export)).num_entries == 1 + len(NAMES)
    async with site.coordinator.database.write() as connection:
        await connection.execute(t.acts.update().where(t.acts.c.seq == 2).values(role="viewer"))
    with pytest.raises(ActsInvalid, match="was changed"):
        await verified(site, await exported(site, 1 + len(NAMES)))


async def test_what_it_says_of_an_erased_client_can_be_read_by_nobody_and_the_chain_verifies(site: Site) -> None:
    agents = await site.enrol(*NAMES)
    async with working(agents):
        await run_to_its_end(site, stop={"rounds": 1})
        filed = await file(site.admin, "b", federation_id=site.federation_id, recovery_rounds=0)
        before = await acts(site, 3 + len(NAMES))
        await completed(site.admin, filed.json()["id"])
    assert "b" in [words["name"] for act in before for words in said(act, "whom") if words is not None]
    after = await acts(site, len(before))
    named = [words and words["name"] for act in after for words in said(act, "whom")]
    assert named.count(None) == 2, "where it was enrolled, and where its erasure was filed"
    assert "b" not in named and set(named) - {None} == set(NAMES) - {"b"}
    assert [act["entry"] for act in after[: len(before)]] == [act["entry"] for act in before], "the entries stay"
    found = await verified(site, await exported(site, len(after)))
    assert found.num_closed == 2 and found.num_entries == len(after)
    assert all(said(act, "who") != [None] for act in after)


async def test_a_client_that_files_for_itself_is_forgotten_as_the_one_who_did_it(small_site: Site) -> None:
    site = small_site
    agents = await site.enrol(*NAMES)
    async with working(agents):
        await run_to_its_end(site, stop={"rounds": 1})
        filed = await file(agents[0], "a", recovery_rounds=0)
        await completed(site.admin, filed.json()["id"])
    (act,) = await acts(site, 1, about=filed.json()["id"])
    assert act["entry"]["role"] == "client" and said(act, "who") == said(act, "whom") == [None]
    rows = await stored(site)
    assert "hospital" not in json.dumps(rows) and '"a"' not in json.dumps(rows)


async def stored(site: Site) -> list[Any]:
    async with site.coordinator.database.read() as connection:
        return list((await connection.execute(sa.select(t.acts.c.parts))).scalars())


async def test_no_name_lies_open_in_the_rows(site: Site) -> None:
    await site.enrol("hospital-of-the-holy-ghost")
    await acts(site, 2)
    rows = json.dumps(await stored(site))
    assert "ghost" not in rows and "127.0.0.1" not in rows and "installation" not in rows


async def test_old_entries_are_pruned_behind_a_signed_head(site: Site) -> None:
    await site.enrol(*NAMES)
    await exported(site, 1 + len(NAMES))
    assert await site.coordinator.acts.prune(timedelta(days=1)) == 0
    assert await site.coordinator.acts.prune(timedelta(0)) == 1 + len(NAMES)
    await site.coordinator.acts.tend()
    await site.enrol("late")
    export = await exported(site, 1)
    found = await verified(site, export)
    assert (found.head.kept_from, found.head.seq, found.num_entries) == (2 + len(NAMES), 2 + len(NAMES), 1)


async def test_a_database_that_was_put_back_is_told_of_in_the_log(site: Site) -> None:
    """As a restored backup would be: it has fewer entries than were signed."""
    await site.enrol(*NAMES)
    await exported(site, 1 + len(NAMES))
    async with site.coordinator.database.write() as connection:
        second = sa.select(t.acts.c.digest).where(t.acts.c.seq == 2)
        digest = (await connection.execute(second)).scalar_one()
        await connection.execute(t.acts.delete().where(t.acts.c.seq > 2))
        await connection.execute(t.act_chains.update().values(seq=2, digest=digest))
    await site.enrol("late")
    found = await acts(site, 4)
    assert [act["entry"]["act"] for act in found[2:]] == ["log.interrupted", "client.enrolled"]
    gap = found[2]["entry"]["gap"]
    assert (gap["first"], gap["last"]) == (3, 1 + len(NAMES))
    export = await exported(site, 4)
    assert (await verified(site, export)).num_lost == len(NAMES) - 1


async def test_rows_that_were_changed_and_chained_again_do_not_go_together_with_what_was_signed(site: Site) -> None:
    """By whoever can write to the database and cannot sign."""
    await site.enrol(*NAMES)
    num = 1 + len(NAMES)
    await exported(site, num)
    async with site.coordinator.database.write() as connection:
        forged = "sha256:" + "0" * 64
        await connection.execute(t.acts.update().where(t.acts.c.seq == num).values(role="viewer", digest=forged))
        await connection.execute(t.act_chains.update().values(digest=forged))
    await site.enrol("late")
    found = await acts(site, num + 2)
    assert found[num]["entry"]["act"] == "log.interrupted"
    with pytest.raises(ActsInvalid):
        await verified(site, await exported(site, num + 2))


async def test_acts_that_were_done_before_a_crash_are_linked_after_it(tmp_path: Any) -> None:
    async with opened(tmp_path / "home", None) as site:
        await site.enrol("a")
        await acts(site, 2)
        federation_id = site.federation_id
        head = site.coordinator.settings.evidence_path / "acts" / f"{federation_id}.json"
        await until(head.exists)
        async with site.coordinator.database.write() as connection:
            last = t.acts.update().where(t.acts.c.seq == 2).values(seq=None, digest=None)
            first = sa.select(t.acts.c.digest).where(t.acts.c.seq == 1)
            digest = (await connection.execute(first)).scalar_one()
            await connection.execute(last)
            await connection.execute(t.act_chains.update().values(seq=1, digest=digest, head=None))
        head.unlink()
    async with opened(tmp_path / "home", None, federation="another") as site:
        site.federation_id = federation_id
        assert [act["entry"]["seq"] for act in await acts(site, 2)] == [1, 2]


async def test_a_page_goes_on_after_a_number(small_site: Site) -> None:
    site = small_site
    await site.enrol(*NAMES)
    await acts(site, 1 + len(NAMES))
    later = (await site.admin.get(path(site), params={"after": 2, "limit": 1}))["items"]
    assert [act["entry"]["seq"] for act in later] == [3]


async def test_the_head_of_a_log_that_is_not_signed_yet_is_not_found(small_site: Site) -> None:
    site = small_site
    await exported(site, 1)
    async with site.coordinator.database.write() as connection:
        await connection.execute(t.act_chains.delete())
    assert code_of(await site.admin.call("GET", f"{path(site)}/head")) == "not-found"
    unknown = await site.admin.call("GET", f"/v1/federations/{UUID(int=1)}/acts")
    assert code_of(unknown) == "not-found"


async def test_the_doctor_finds_entries_that_were_changed(site: Site) -> None:
    await site.enrol(*NAMES)
    await exported(site, 1 + len(NAMES))
    looking = Examined(site.coordinator, patience_s=0)
    assert await doctor.acts(looking) == []
    async with site.coordinator.database.write() as connection:
        await connection.execute(t.acts.update().where(t.acts.c.seq == 2).values(act="client.removed"))
    (found,) = await doctor.acts(looking)
    assert found.name == "acts-changed" and site.federation_id in found.what
