"""What is signed and lies beside it: after a restore, when something is not accounted for, when there is a lot."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest
import sqlalchemy as sa

from coordinator.store import artefacts, blobs, evidence, inventory
from coordinator.store import tables as t
from services.audit.artefact_list import Leaf, read_list
from services.audit.certificate import artefact_root
from services.audit.keys import public_pem
from services.audit.predicate import Incident, Statement
from services.audit.verification import Beside, Verdict, check
from services.core import digests
from services.core.errors import InvariantBroken
from tests.support.federation import Federation, federation

pytestmark = pytest.mark.anyio
NAMES = ("c0", "c1", "c2")


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str | None:
    return request.getfixturevalue("postgres_url") if request.param == "postgres" else None


async def certificate_of(f: Federation, erasure_id: UUID) -> bytes:
    (row,) = await f.rows(t.certificates, t.certificates.c.erasure_id == erasure_id)
    return bytes(row.envelope.encode())


async def verdict_on(f: Federation, erasure_id: UUID, certificate: bytes, client: str) -> Verdict:
    """With the list and the opening that the coordinator keeps."""
    files = f.coordinator.erasure_steps.certificates.files
    opening = files.opening_path(erasure_id).read_bytes()
    with files.list_path(erasure_id, artefact_root(certificate) or "").open("rb") as file:
        issuer = public_pem(f.coordinator.signing_keys.load().public_key())
        return check(certificate, issuer, beside=Beside(list=file, client=client, opening=opening))


async def leaves_of(f: Federation, erasure_id: UUID, certificate: bytes) -> list[Leaf]:
    files = f.coordinator.erasure_steps.certificates.files
    with files.list_path(erasure_id, artefact_root(certificate) or "").open("rb") as file:
        return list(read_list(file))


async def erased(f: Federation, name: str) -> UUID:
    f.work()
    await f.wait_for_run(await f.create_run(stop={"rounds": 2}))
    erasure_id = await f.erase(name, recovery_rounds=0)
    assert (await f.wait_for_erasure(erasure_id)).status == "completed"
    return erasure_id


async def go_back_to_before(f: Federation, erasure_id: UUID) -> None:
    """What a backup from before the request would not know."""
    async with f.coordinator.database.write() as connection:
        for table in (t.certificates, t.artefacts, t.erasure_log, t.lines, t.subjects):
            await connection.execute(sa.delete(table).where(table.c.erasure_id == erasure_id))
        await connection.execute(t.checkpoints.update().values(superseded_by=None))
        await connection.execute(sa.delete(t.erasures).where(t.erasures.c.id == erasure_id))
        await connection.execute(t.clients.update().values(status="active"))
        await connection.execute(sa.delete(t.evidence_state))


async def test_a_request_that_is_certified_again_after_a_restore_opens_as_before(
    tmp_path: Path, url: str | None
) -> None:
    async with federation(tmp_path, *NAMES, url=url) as f:
        erasure_id = await erased(f, "c0")
        before = await certificate_of(f, erasure_id)
        await go_back_to_before(f, erasure_id)
        await f.coordinator.evidence.look()
        assert (await f.wait_for_erasure(erasure_id)).status == "completed"
        after = await certificate_of(f, erasure_id)
        assert artefact_root(after) != artefact_root(before)
        for certificate in (before, after):
            verdict = await verdict_on(f, erasure_id, certificate, "c0")
            assert verdict.valid and verdict.complete, verdict.checks
            assert not (await verdict_on(f, erasure_id, certificate, "c1")).valid


async def add(
    f: Federation, erasure_id: UUID, kind: str, digest: str, disposition: str | None, reason: str = ""
) -> None:
    row = {"kind": kind, "digest": digest, "disposition": disposition, "reason": reason}
    async with f.coordinator.database.write() as connection:
        await connection.execute(t.artefacts.insert().values(erasure_id=erasure_id, **row))


async def certify(f: Federation, erasure_id: UUID) -> bytes:
    """As if the request were not completed yet."""
    database = f.coordinator.database
    async with database.write() as connection:
        await connection.execute(t.erasures.update().values(salt="00" * 32))
        found = await inventory.erasure_record(connection, erasure_id)
    return await f.coordinator.erasure_steps.certificates.issue(found)


async def test_what_others_recorded_of_an_artefact_is_signed(tmp_path: Path, url: str | None) -> None:
    async with federation(tmp_path, *NAMES, url=url) as f:
        erasure_id = await erased(f, "c0")
        await add(f, erasure_id, "log-tail", digests.of_json("tasks/1/log"), "scrubbed")
        await add(f, erasure_id, "worker-cache", digests.of_json("c1"), "unconfirmed", "Not heard of since the fence.")
        (request,) = await f.rows(t.erasures)
        incident = Incident(at=request.created_at, kind="signing-key-lost", explanation="Its disk broke.")
        async with f.coordinator.database.write() as connection:
            told = evidence.Incident(incident.at, incident.kind, incident.explanation)
            await evidence.report(connection, erasure_id, told, "test")
        certificate = await certify(f, erasure_id)
        verdict = await verdict_on(f, erasure_id, certificate, "c0")
        assert verdict.valid and verdict.complete, verdict.checks
        assert isinstance(verdict.statement, Statement)
        kinds = verdict.statement.predicate.artefacts.kinds
        assert kinds["log-tail"].dispositions == {"scrubbed": 1}
        assert kinds["worker-cache"].dispositions == {
            "unconfirmed": len(NAMES) + 1
        }  # nobody's worker has said anything
        assert verdict.statement.predicate.incidents == (incident,)
        said = {leaf.reason for leaf in await leaves_of(f, erasure_id, certificate)}
        assert {"", "Not heard of since the fence."} <= said


async def test_what_nobody_accounts_for_refuses_the_certificate(tmp_path: Path, url: str | None) -> None:
    """Of text and caches only whoever dealt with them knows what became of them; of bytes nobody's word counts."""
    async with federation(tmp_path, *NAMES, url=url) as f:
        erasure_id = await erased(f, "c0")
        left = digests.of_json("left")
        blank = await f.coordinator.sealer.of_operator(f.id, left, 3, datetime.now(UTC))
        async with f.coordinator.database.write() as connection:
            forgotten = replace(blank, origin="task", client_id=f.clients["c0"], status="stored")
            await blobs.announce(connection, [forgotten])
        refused = (
            ("canary", digests.of_json("canary"), None, "nobody has said what became of canary"),
            ("device", digests.of_json("device"), "deleted", "cannot be deleted"),
            ("update", left, None, "is still stored"),
            ("step", left, "deleted", "is still stored"),
        )
        lists = sorted((f.coordinator.settings.evidence_path / "certificates").iterdir())
        for kind, digest, disposition, why in refused:
            await add(f, erasure_id, kind, digest, disposition)
            with pytest.raises(InvariantBroken, match=why):
                await certify(f, erasure_id)
            async with f.coordinator.database.write() as connection:
                await connection.execute(sa.delete(t.artefacts).where(t.artefacts.c.digest == digest))
        assert sorted((f.coordinator.settings.evidence_path / "certificates").iterdir()) == lists
        assert await certify(f, erasure_id)


async def test_pages_of_artefacts_leave_none_out(
    tmp_path: Path, url: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artefacts, "PAGE", 2)
    async with federation(tmp_path, *NAMES, url=url) as f:
        erasure_id = await erased(f, "c0")
        certificate = await certificate_of(f, erasure_id)
        verdict = await verdict_on(f, erasure_id, certificate, "c0")
        assert verdict.valid and verdict.complete
        rows = {(row.kind, row.digest) for row in await f.rows(t.artefacts)}
        assert len(rows) > 5
        leaves = [(leaf.kind, leaf.digest) for leaf in await leaves_of(f, erasure_id, certificate)]
        assert len(leaves) == len(rows) and set(leaves) == rows
