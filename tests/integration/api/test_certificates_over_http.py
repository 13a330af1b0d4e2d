"""What lies beside a certificate: the list of artefacts, and the opening of its pseudonyms. Who gets it, where it is
kept, and that nothing of it stays in the database."""

from __future__ import annotations

import io
import stat
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from coordinator.store import tables as t
from services.audit import artefact_list, opening
from services.audit.predicate import PLAIN_BACKUPS, STANDING_LIMITS, Statement
from services.audit.verification import Beside, Verdict, check
from tests.integration.api.site import Actor, Site, code_of, until
from tests.integration.api.test_erasure_over_http import NAMES, REQUESTS, completed, file, run_to_its_end, working

pytestmark = pytest.mark.anyio


async def erased(site: Site, *subjects: str, **changes: Any) -> str:
    """The path of a completed request about clients of a run of one round."""
    agents = await site.enrol(*NAMES)
    async with working(agents):
        await run_to_its_end(site, stop={"rounds": 1})
        filed = await file(site.admin, *subjects, federation_id=site.federation_id, recovery_rounds=0, **changes)
        await completed(site.admin, filed.json()["id"])
    return f"{REQUESTS}/{filed.json()['id']}"


async def verdict_on(by: Actor, path: str, **beside: Any) -> Verdict:
    key = (await by.get("/v1/erasure/discovery"))["public_key"]
    certificate = await by.call("GET", f"{path}/certificate")
    return check(certificate.content, key.encode(), beside=Beside(**beside))


def evidence(site: Site, kind: str) -> list[Path]:
    return sorted((site.coordinator.settings.evidence_path / kind).iterdir())


async def salts(site: Site) -> list[str]:
    async with site.coordinator.database.read() as connection:
        return list((await connection.execute(sa.select(t.erasures.c.salt))).scalars())


async def test_the_list_of_a_certificate_is_handed_out_and_has_its_root(site: Site) -> None:
    path = await erased(site, "b")
    viewer = await site.staff("viewer")
    answer = await viewer.call("GET", f"{path}/certificate/artefacts")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith(artefact_list.MEDIA_TYPE)
    verdict = await verdict_on(viewer, path, list=io.BytesIO(answer.content))
    assert verdict.valid and verdict.complete, verdict.checks
    assert isinstance(verdict.statement, Statement)
    predicate = verdict.statement.predicate
    assert str(predicate.federation) == site.federation_id
    assert {"update", "checkpoint", "credential"} <= predicate.artefacts.kinds.keys()
    assert set(STANDING_LIMITS) <= set(predicate.limits) and PLAIN_BACKUPS not in predicate.limits
    (kept,) = evidence(site, "certificates")
    assert kept.read_bytes() == answer.content and stat.S_IMODE(kept.stat().st_mode) == 0o600


async def test_a_certificate_and_its_list_name_nobody(small_site: Site) -> None:
    path = await erased(small_site, "b")
    for part in ("certificate", "certificate/artefacts"):
        content = (await small_site.admin.call("GET", f"{path}/{part}")).content
        assert b'"b"' not in content and b"hospital" not in content
    verdict = await verdict_on(small_site.admin, path)
    assert verdict.statement is not None
    assert '"b"' not in verdict.statement.model_dump_json()


async def test_the_salt_of_a_completed_request_is_in_its_opening_and_not_in_the_database(site: Site) -> None:
    path = await erased(site, "b")
    assert await salts(site) == [""]
    answer = await site.admin.call("GET", f"{path}/opening")
    assert answer.status_code == 200
    assert opening.read(answer.content).clients == ("b",)
    (kept,) = evidence(site, "openings")
    assert kept.read_bytes() == answer.content and stat.S_IMODE(kept.stat().st_mode) == 0o600
    for client, is_about in (("b", True), ("a", False)):
        assert (await verdict_on(site.admin, path, client=client, opening=answer.content)).valid == is_about


@pytest.mark.parametrize("verdict", ["deny", "cancel"])
async def test_the_salt_of_a_request_that_is_not_carried_out_is_dropped(small_site: Site, verdict: str) -> None:
    await small_site.enrol(*NAMES)
    filed = await file(small_site.admin, "a", federation_id=small_site.federation_id, needs_approval=True)
    (salt,) = await salts(small_site)
    assert len(salt) == 64
    body = {"reason": "no"} if verdict == "deny" else None
    await small_site.admin.post(f"{REQUESTS}/{filed.json()['id']}/{verdict}", body, expect=200)
    assert await salts(small_site) == [""]


async def test_only_who_may_file_such_a_request_is_told_whom_a_certificate_is_about(small_site: Site) -> None:
    site = small_site
    path = await erased(site, "b")
    for role, may in (("viewer", False), ("operator", False), ("compliance", True), ("admin", True)):
        somebody = await site.staff(role)
        answer = await somebody.call("GET", f"{path}/opening")
        assert answer.status_code == (200 if may else 403), role
        assert may or code_of(answer) == "forbidden"
        assert (await somebody.call("GET", f"{path}/certificate/artefacts")).status_code == 200
    (stranger,) = await site.enrol("stranger")
    (elsewhere,) = await site.enrol("b", federation_id=await site.federation("elsewhere"))
    for somebody in (stranger, elsewhere):
        for part in ("opening", "certificate", "certificate/artefacts"):
            assert code_of(await somebody.call("GET", f"{path}/{part}")) == "not-found"


async def test_before_it_is_completed_a_request_has_neither_list_nor_opening(small_site: Site) -> None:
    await small_site.enrol(*NAMES)
    filed = await file(small_site.admin, "a", federation_id=small_site.federation_id, needs_approval=True)
    for part in ("certificate", "certificate/artefacts", "opening"):
        answer = await small_site.admin.call("GET", f"{REQUESTS}/{filed.json()['id']}/{part}")
        assert (answer.status_code, code_of(answer)) == (409, "certificate-not-ready")


async def test_a_lost_list_is_not_found_and_the_signature_still_holds(small_site: Site) -> None:
    path = await erased(small_site, "b")
    for kind, part in (("certificates", "certificate/artefacts"), ("openings", "opening")):
        (kept,) = evidence(small_site, kind)
        kept.unlink()
        answer = await small_site.admin.call("GET", f"{path}/{part}")
        assert (answer.status_code, code_of(answer)) == (404, "not-found")
    verdict = await verdict_on(small_site.admin, path)
    assert verdict.valid and not verdict.complete


async def test_a_duplicate_has_the_certificate_list_and_opening_of_what_was_carried_out(small_site: Site) -> None:
    site = small_site
    await site.enrol(*NAMES)
    own = {"federation_id": site.federation_id}
    first = (await file(site.admin, "a", needs_approval=True, **own)).json()["id"]
    second = (await file(site.admin, "a", key="again", **own)).json()
    assert second["duplicate_of"] == first
    await site.admin.post(f"{REQUESTS}/{first}/approve", expect=200)
    await completed(site.admin, second["id"])
    for part in ("certificate", "certificate/artefacts", "opening"):
        answers = [await site.admin.call("GET", f"{REQUESTS}/{id}/{part}") for id in (first, second["id"])]
        assert [answer.status_code for answer in answers] == [200, 200]
        assert answers[0].content == answers[1].content
    assert await salts(site) == ["", ""]


async def test_an_opening_that_cannot_be_written_holds_the_request(site: Site) -> None:
    await site.enrol(*NAMES)
    openings = site.coordinator.settings.evidence_path / "openings"
    openings.parent.mkdir(exist_ok=True)
    openings.write_text("not a directory")
    path = f"{REQUESTS}/{(await file(site.admin, 'a', federation_id=site.federation_id)).json()['id']}"

    async def is_held() -> bool:
        return (await site.admin.get(path))["status"] == "requires_action"  # type: ignore[no-any-return]

    await until(is_held)
    assert "the directory of evidence cannot be used" in (await site.admin.get(path))["reason"]
    assert code_of(await site.admin.call("GET", f"{path}/certificate")) == "certificate-not-ready"
    assert len((await salts(site))[0]) == 64, "it is needed for the next attempt"
    openings.unlink()
    await site.admin.post(f"{path}/retry", expect=200)
    await completed(site.admin, path.rpartition("/")[2])
    assert await salts(site) == [""]


async def test_a_request_that_an_earlier_release_completed_gets_its_opening_and_loses_its_salt(site: Site) -> None:
    path = await erased(site, "b")
    (kept,) = evidence(site, "openings")
    known = opening.read(kept.read_bytes())
    kept.unlink()
    async with site.coordinator.database.write() as connection:
        await connection.execute(t.erasures.update().values(salt=known.salt))
    await site.coordinator.erasure_steps.release_salts()
    assert await salts(site) == [""]
    answer = await site.admin.call("GET", f"{path}/opening")
    assert opening.read(answer.content) == known
