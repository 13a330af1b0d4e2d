"""Who may decide a request to forget, over the API: four eyes, what is recorded, deadlines, notes, filters, counts."""

from __future__ import annotations

import asyncio
import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import pytest
import sqlalchemy as sa

from coordinator.engine.entities import Party
from coordinator.runtime.accounts import split_token
from coordinator.store import accounts, erasures
from coordinator.store import tables as t
from coordinator.store.erasures import Filters, View
from coordinator.store.paging import Position
from tests.integration.api.site import Actor, Site, code_of
from tests.integration.api.test_acts_over_http import acts, said
from tests.integration.api.test_erasure_over_http import NAMES, REQUESTS, completed, file, run_to_its_end, working

pytestmark = pytest.mark.anyio
STATES = ["awaiting_approval", "cancelled"]
HOSTILE = "<script>alert(1)</script> & co"


async def demand(site: Site, rule: str) -> Any:
    path = f"/v1/federations/{site.federation_id}"
    answer = await site.admin.call("PATCH", path, json={"four_eyes": rule})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def named(site: Site, label: str, role: str = "compliance", by: Actor | None = None) -> Actor:
    path = f"/v1/federations/{site.federation_id}/credentials"
    return site.actor((await (by or site.admin).post(path, {"role": role, "label": label}))["token"])


def credential_of(actor: Actor) -> str:
    return str(split_token(actor.token)[0])


async def approve(by: Actor, erasure_id: str, **options: Any) -> Any:
    return await by.call("POST", f"{REQUESTS}/{erasure_id}/approve", **options)


async def waiting(by: Actor, *names: str, key: str = "k", **changes: Any) -> Any:
    answer = await file(by, *names, key=key, **{"needs_approval": True, **changes})
    assert answer.status_code == 202, answer.text
    return answer.json()


def listed(page: Any) -> list[str]:
    return [one["subjects"][0] for one in page["items"]]


# --- who am I ---------------------------------------------------------------------------------------------------------


async def test_everybody_learns_who_they_are_and_what_they_may_do(site: Site) -> None:
    (client,) = await site.enrol("a")
    may = {
        "viewer": ["read"],
        "operator": ["read", "train"],
        "compliance": ["read", "file", "approve"],
        "admin": ["read", "train", "file", "approve", "administer"],
    }
    for role, can in may.items():
        actor = await named(site, f"the {role}", role)
        found = await actor.get("/v1/me")
        assert (found["role"], found["can"], found["label"]) == (role, can, f"the {role}")
        assert found["federation_id"] == site.federation_id and found["credential_id"] == credential_of(actor)
        assert found["session"] is False and found["person"] is None
    own = await client.get("/v1/me")
    assert (own["role"], own["client_name"], own["client_id"], own["can"]) == (
        "client",
        "a",
        client.client_id,
        ["file"],
    )
    assert (await site.admin.get("/v1/me"))["federation_id"] is None
    assert code_of(await site.actor("no-such-token").call("GET", "/v1/me")) == "unauthenticated"


# --- four eyes --------------------------------------------------------------------------------------------------------


async def test_the_filer_cannot_approve_and_a_second_credential_can(site: Site) -> None:
    assert (await demand(site, "asked"))["four_eyes"] == "asked"
    await site.enrol(*NAMES)
    filer, other = await named(site, "Dr. Weber"), await named(site, HOSTILE)
    some: dict[str, Any] = {"scope": "samples", "samples": {"b": [3]}}  # who stays can be read of
    filed = await waiting(filer, "b", ground="withdrawal", external_ref="ticket-4711", **some)
    assert filed["needs_approval"] and filed["four_eyes"] and not filed["approvable_by_me"]
    assert (filed["ground"], filed["external_ref"]) == ("withdrawal", "ticket-4711")
    assert filed["filed_by"] == {
        "credential_id": credential_of(filer),
        "role": "compliance",
        "label": "Dr. Weber",
        "person": None,
    }
    assert code_of(await approve(filer, filed["id"])) == "four-eyes"
    denied = await filer.call("POST", f"{REQUESTS}/{filed['id']}/deny", json={"reason": "no"})
    assert (denied.status_code, code_of(denied)) == (403, "four-eyes")
    assert (await other.get(f"{REQUESTS}/{filed['id']}"))["approvable_by_me"]
    done = (await approve(other, filed["id"], json={"reason": "the letter is signed"})).json()
    assert (done["decision"], done["decided_by"]["label"]) == ("approved", HOSTILE)
    assert (done["decision_reason"], done["status"]) == ("the letter is signed", "received")
    assert done["decided_at"] is not None and not done["approvable_by_me"]
    about = await acts(site, 2, about=filed["id"])
    assert [act["entry"]["act"] for act in about[:2]] == ["erasure.filed", "erasure.approved"]
    assert said(about[1], "words") == [{"text": "the letter is signed"}]
    events = (await other.get(f"{REQUESTS}/{filed['id']}/events", headers={"Accept": "application/json"}))["items"]
    assert {"decision": "approved", "role": "compliance", "credential_id": credential_of(other)} in [
        event["data"] for event in events
    ]


async def test_a_credential_of_the_filers_making_cannot_approve_however_many_are_between(site: Site) -> None:
    await demand(site, "asked")
    await site.enrol(*NAMES)
    filer = await named(site, "filer", "admin")
    child = await named(site, "child", "admin", by=filer)
    grandchild = await named(site, "grandchild", by=child)
    sibling = await named(site, "sibling")
    filed = await waiting(filer, "b")
    for own in (child, grandchild):
        assert code_of(await approve(own, filed["id"])) == "four-eyes"
        assert not (await own.get(f"{REQUESTS}/{filed['id']}"))["approvable_by_me"]
    assert (await approve(sibling, filed["id"])).status_code == 200


async def test_where_all_requests_need_approval_also_a_clients_own_does(site: Site) -> None:
    await demand(site, "all")
    agents = await site.enrol(*NAMES)
    preview = await agents[0].post(f"{REQUESTS}:preview", {"subjects": ["a"]}, expect=200)
    assert preview["needs_approval"]
    filed = (await file(agents[0], "a")).json()
    assert (filed["status"], filed["filed_by"]["role"], filed["filed_by"]["label"]) == (
        "awaiting_approval",
        "client",
        None,
    )
    assert code_of(await approve(agents[0], filed["id"])) == "forbidden"
    assert (await approve(await site.staff("compliance"), filed["id"])).status_code == 200


async def test_without_the_rule_one_pair_of_eyes_is_enough(small_site: Site) -> None:
    site = small_site
    await site.enrol(*NAMES)
    officer = await site.staff("compliance")
    filed = await waiting(officer, "b")
    assert filed["approvable_by_me"] and not filed["four_eyes"]
    assert (await approve(officer, filed["id"])).status_code == 200


async def test_only_an_admin_changes_the_rule_and_it_is_an_act(small_site: Site) -> None:
    site = small_site
    operator, path = await site.staff("operator"), f"/v1/federations/{site.federation_id}"
    assert code_of(await operator.call("PATCH", path, json={"four_eyes": "off"})) == "forbidden"
    wrong: tuple[dict[str, Any], ...] = ({"four_eyes": "some"}, {}, {"incentives": {}})
    for nonsense in wrong:
        assert code_of(await site.admin.call("PATCH", path, json=nonsense)) == "invalid-request"
    await demand(site, "all")
    assert (await operator.get(path))["four_eyes"] == "all"
    assert (await operator.call("PATCH", path, json={"allocation": None})).json()["four_eyes"] == "all"
    found = await acts(site, 4)
    assert said(found[2], "words") == [{"text": "four eyes: all"}]
    made = await site.admin.post("/v1/federations", {"name": "careful", "four_eyes": "asked"})
    assert made["four_eyes"] == "asked"


@pytest.mark.parametrize("role", ["viewer", "operator", "client"])
async def test_others_decide_extend_and_write_nothing(small_site: Site, role: str) -> None:
    site = small_site
    agents = await site.enrol(*NAMES)
    filed = await waiting(await site.staff("compliance"), "a")
    actor = agents[0] if role == "client" else await site.staff(role)
    bodies: dict[str, Any] = {
        "approve": {},
        "deny": {"reason": "no"},
        "extend": {"until": "2200-01-01T00:00:00Z", "reason": "long"},
        "notes": {"text": "hello"},
    }
    for verdict, body in bodies.items():
        assert code_of(await actor.call("POST", f"{REQUESTS}/{filed['id']}/{verdict}", json=body)) == "forbidden"
    assert code_of(await actor.call("GET", f"{REQUESTS}/{filed['id']}/notes")) == "forbidden"


async def test_of_two_who_approve_at_once_one_wins(site: Site) -> None:
    await demand(site, "asked")
    await site.enrol(*NAMES)
    filed = await waiting(await named(site, "filer"), "b")
    officers = [await named(site, f"officer {number}") for number in range(2)]
    answers = await asyncio.gather(*(approve(one, filed["id"]) for one in officers))
    assert sorted(answer.status_code for answer in answers) == [200, 409]
    winner = [answer.status_code for answer in answers].index(200)
    found = await site.admin.get(f"{REQUESTS}/{filed['id']}")
    assert found["decided_by"]["label"] == f"officer {winner}"
    late = await approve(officers[0], filed["id"], headers={"If-Match": '"1"'})
    assert (late.status_code, code_of(late)) == (412, "precondition-failed")
    about = [act for act in await acts(site, 2, about=filed["id"]) if act["entry"]["act"] == "erasure.approved"]
    assert len(about) == 1, "who came second did nothing"


async def test_an_approver_who_was_removed_approves_nothing_and_what_it_approved_keeps_its_name(site: Site) -> None:
    await demand(site, "asked")
    await site.enrol(*NAMES)
    filer, other = await named(site, "filer"), await named(site, "Ms. Huber")
    first, second = await waiting(filer, "a", key="1"), await waiting(filer, "b", key="2")
    assert (await approve(other, first["id"])).status_code == 200
    assert (await site.admin.call("DELETE", f"/v1/credentials/{credential_of(other)}")).status_code == 204
    assert code_of(await approve(other, second["id"])) == "unauthenticated"
    assert (await filer.get(f"{REQUESTS}/{first['id']}"))["decided_by"]["label"] == "Ms. Huber"
    assert (await filer.get(f"{REQUESTS}/{second['id']}"))["status"] == "awaiting_approval"


async def test_the_filter_in_sql_is_the_rule_of_the_engine(site: Site) -> None:
    await demand(site, "asked")
    await site.enrol(*NAMES)
    filer = await named(site, "filer", "admin")
    await waiting(filer, "a")
    filed = UUID(credential_of(filer))
    people = [Party(filed, "admin"), Party(UUID(int=9), "admin"), Party(UUID(int=9), "admin", subject="bob")]
    async with site.coordinator.database.write() as connection:
        now = await site.coordinator.database.now(connection)
        for subject in (None, "ada", "bob"):
            document = {"credential_id": str(filed), "role": "admin", "subject": subject}
            await connection.execute(t.erasures.update().values(filed_by=document))
            for decider in people:
                for made_by in ((), (filed,)):
                    view = View(None, None, decider, made_by)
                    (shown,) = (await erasures.erasures(connection, view, Filters(), "created", Position(), now)).items
                    count = await erasures.count(connection, view, Filters(awaits_me=True), now)
                    assert count.total == count.awaiting_my_approval == int(shown.approvable_by_me)


async def test_makers_are_found_also_where_they_go_round_in_a_circle(site: Site) -> None:
    one = UUID(credential_of(await named(site, "one", "admin")))
    two = UUID(credential_of(await named(site, "two", "admin")))
    c = t.credentials.c
    async with site.coordinator.database.write() as connection:
        for made, by in ((one, two), (two, one)):
            await connection.execute(t.credentials.update().where(c.id == made).values(created_by=by))
        assert set(await accounts.makers(connection, one)) == {one, two}


# --- deadlines --------------------------------------------------------------------------------------------------------


async def test_a_deadline_is_extended_once(site: Site) -> None:
    await site.enrol(*NAMES)
    officer = await named(site, "Dr. Weber")
    filed = await waiting(officer, "b")
    path = f"{REQUESTS}/{filed['id']}/extend"
    for until in ("2020-01-01T00:00:00Z", filed["legal_deadline"], "2999-01-01T00:00:00Z", "tomorrow", "2099-01-01T00"):
        answer = await officer.call("POST", path, json={"until": until, "reason": "several runs are paused"})
        assert (answer.status_code, code_of(answer)) == (422, "invalid-request"), until
    until = datetime.fromisoformat(filed["legal_deadline"]) + timedelta(days=60)
    body = {"until": until.isoformat(), "reason": "several runs are paused"}
    assert code_of(await officer.call("POST", path, json={"until": body["until"]})) == "invalid-request"
    done = await officer.post(path, body, expect=200)
    assert datetime.fromisoformat(done["legal_deadline"]) == until and done["days_left"] > 80
    assert done["extension"]["by"]["label"] == "Dr. Weber"
    assert done["extension"]["deadline_before"] == filed["legal_deadline"]
    again = await officer.call("POST", path, json={**body, "until": (until + timedelta(days=1)).isoformat()})
    assert (again.status_code, code_of(again)) == (409, "conflict")
    about = await acts(site, 2, about=filed["id"])
    assert about[1]["entry"]["act"] == "erasure.extended"
    assert said(about[1], "words") == [{"text": "several runs are paused"}]


# --- notes ------------------------------------------------------------------------------------------------------------


async def test_notes_are_read_by_those_who_decide_and_by_nobody_once_the_client_is_erased(site: Site) -> None:
    agents = await site.enrol(*NAMES)
    officer = await named(site, "Dr. Weber")
    async with working(agents):
        await run_to_its_end(site, stop={"rounds": 1})
        filed = await waiting(officer, "b", note="by letter of <b>", recovery_rounds=0, ground="objection")
        path = f"{REQUESTS}/{filed['id']}/notes"
        written = await officer.post(path, {"text": "called b back"})
        assert written["by"]["label"] == "Dr. Weber"
        for nothing in ({"text": ""}, {}, {"text": "x" * 4001}):
            assert code_of(await officer.call("POST", path, json=nothing)) == "invalid-request"
        notes = (await officer.get(path))["items"]
        assert [note["text"] for note in notes] == ["by letter of <b>", "called b back"]
        assert notes[1] == written
        first = await officer.get(path, params={"limit": 1})
        rest = await officer.get(path, params={"limit": 1, "cursor": first["next_cursor"]})
        assert (first["items"] + rest["items"], rest["next_cursor"]) == (notes, None)
        await approve(officer, filed["id"], json={"reason": "b has the right to it"})
        await completed(officer, filed["id"])
    after = (await officer.get(path))["items"]
    assert [note["text"] for note in after] == [None, None]
    assert [note["by"]["label"] for note in after] == ["Dr. Weber"] * 2
    late = await officer.call("POST", path, json={"text": "one more about b"})
    assert (late.status_code, code_of(late)) == (409, "conflict")
    found = await officer.get(f"{REQUESTS}/{filed['id']}")
    assert found["decision_reason"].startswith("(scrubbed")
    async with site.coordinator.database.read() as connection:
        rows = [*await connection.execute(sa.select(t.erasures)), *await connection.execute(sa.select(t.erasure_log))]
    assert "has the right to it" not in str(rows)


# --- lists ------------------------------------------------------------------------------------------------------------


async def test_requests_are_filtered_sorted_and_counted(site: Site) -> None:
    await demand(site, "asked")
    agents = await site.enrol(*NAMES)
    one, other = await named(site, "one"), await named(site, "other")
    run = await site.start_run(clients=["a", "b"])
    now = datetime.now(UTC)
    days = {"a": 20, "b": 3, "c": 40}
    filed = {
        name: await waiting(one, name, key=name, legal_deadline=(now + timedelta(days=left)).isoformat())
        for name, left in days.items()
    }
    await waiting(other, "d", key="d", legal_deadline=(now + timedelta(days=3)).isoformat())
    await one.post(f"{REQUESTS}/{filed['c']['id']}/cancel", expect=200)

    async def shown(by: Actor, **query: Any) -> list[str]:
        return listed(await by.get(REQUESTS, params=query))

    assert await shown(one) == ["d", "c", "b", "a"] == await shown(one, sort="-created")
    assert await shown(one, sort="created") == ["a", "b", "c", "d"]
    assert await shown(one, sort="deadline") == ["b", "d", "a", "c"]
    assert await shown(one, sort="-deadline") == ["c", "a", "d", "b"]
    assert await shown(one, status=["cancelled", "fenced"]) == ["c"]
    assert await shown(one, subject="b") == ["b"] and await shown(one, subject="nobody") == []
    assert await shown(one, run=run["id"]) == ["b", "a"]
    assert await shown(one, due_before=(now + timedelta(days=50)).isoformat()) == ["d", "b", "a"], "c is over"
    assert await shown(one, awaiting_my_approval=True) == ["d"]
    assert await shown(other, awaiting_my_approval=True, sort="deadline") == ["b", "a"]
    assert await shown(await site.staff("viewer"), awaiting_my_approval=True) == []
    assert await shown(agents[0]) == ["a"], "a client sees its own"
    for sort in ("deadline", "-deadline", "created"):
        found: list[str] = []
        page = await one.call("GET", REQUESTS, params={"sort": sort, "limit": 1, "status": STATES})
        while True:
            found += listed(page.json())
            if "link" not in page.headers:
                break
            address = page.headers["link"].partition(">")[0].removeprefix("<")
            assert parse_qs(urlsplit(address).query)["status"] == STATES
            page = await one.call("GET", address)
        assert found == await shown(one, sort=sort)
    count = await one.get(f"{REQUESTS}:count")
    assert count == {
        "total": 4,
        "by_status": {"awaiting_approval": 3, "cancelled": 1},
        "awaiting_my_approval": 1,
        "overdue": 0,
        "due_within_7_days": 2,
    }
    assert (await other.get(f"{REQUESTS}:count", params={"subject": "a"}))["awaiting_my_approval"] == 1
    async with site.coordinator.database.write() as connection:
        late = t.erasures.update().where(t.erasures.c.id == UUID(filed["a"]["id"]))
        await connection.execute(late.values(legal_deadline=now - timedelta(days=1)))
    assert (await one.get(f"{REQUESTS}:count"))["overdue"] == 1
    elsewhere = await site.staff("compliance", await site.federation("elsewhere"))
    assert (await elsewhere.get(f"{REQUESTS}:count"))["total"] == 0


@pytest.mark.parametrize(
    "query",
    [
        {"status": "lost"},
        {"sort": "colour"},
        {"due_before": "soon"},
        {"due_before": "2026-01-01T00:00:00"},
        {"run": "tiny"},
        {"awaiting_my_approval": "perhaps"},
        {"subject": "x" * 64},
        {"sort": "deadline", "cursor": "bm9uc2Vuc2U"},
        {"sort": "deadline", "cursor": base64.urlsafe_b64encode(b"2026-01-01T00:00:00 x").decode()},
        {"sort": "created", "cursor": base64.urlsafe_b64encode(b"2026-01-01T00:00:00+00:00 x").decode()},
    ],
    ids=json.dumps,
)
async def test_filters_with_nonsense_are_refused_with_what_is_wrong(small_site: Site, query: dict[str, str]) -> None:
    answer = await small_site.admin.call("GET", REQUESTS, params=query)
    assert (answer.status_code, code_of(answer)) == (422, "invalid-request")


# --- the certificate --------------------------------------------------------------------------------------------------


async def test_the_certificate_and_its_page_say_who_filed_and_who_approved(site: Site) -> None:
    await demand(site, "all")
    agents = await site.enrol(*NAMES)
    filer, other = await named(site, HOSTILE), await named(site, "officer for b")
    async with working(agents):
        await run_to_its_end(site, stop={"rounds": 1})
        filed = (await file(filer, "b", recovery_rounds=0, ground="withdrawal")).json()
        assert filed["status"] == "awaiting_approval"
        await approve(other, filed["id"])
        await completed(filer, filed["id"])
    envelope = (await filer.call("GET", f"{REQUESTS}/{filed['id']}/certificate")).json()
    handling = json.loads(base64.b64decode(envelope["payload"]))["predicate"]["handling"]
    assert (handling["filed_by"]["label"], handling["eyes"]) == (HOSTILE, "two credentials")
    assert handling["approved_by"]["label"] is None, "it names the client that was erased"
    assert handling["approved_by"]["credential"] == credential_of(other)
    assert (handling["ground"], handling["needed_approval"]) == ("withdrawal", True)
    page = (await filer.call("GET", f"{REQUESTS}/{filed['id']}/certificate/page")).text
    assert HOSTILE not in page and "&lt;script&gt;alert(1)&lt;/script&gt; &amp; co" in page
    assert "Two credentials" in page and "consent was withdrawn" in page and "officer for b" not in page
