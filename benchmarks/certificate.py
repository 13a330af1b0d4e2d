"""A certificate over very many artefacts: how long it takes to sign, how large it is, and how it is checked.

The request and its artefacts are made up and stand in a real database (SQLite, in a temporary directory); looking each
of them up in the blob store, the list, the opening and the signature are what a coordinator does at the end of a purge.
`sign_s` is all of that, `sign_cpu_s` what it took of the processor. `peak_rss_mb` is that of the whole process, the
making of the artefacts included.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import resource
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from benchmarks.figures import Printer
from coordinator.engine.messages import FileErasure
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.settings import Settings
from coordinator.store import accounts, inventory, schema
from coordinator.store import tables as t
from services.audit.certificate import artefact_root
from services.audit.inclusion import prove, to_bytes
from services.audit.keys import public_pem
from services.audit.verification import Beside, check
from services.core.ids import uuid7
from services.wire.v1.resources import FederationCreate

AT_ONCE: Final = 10_000
LEAVER: Final = "hospital-b"


def digest(number: int) -> str:
    return "sha256:" + hashlib.sha256(b"artefact %d" % number).hexdigest()


def rows(erasure_id: UUID, num_artefacts: int) -> Iterator[dict[str, Any]]:
    kinds = ("update", "update", "checkpoint", "step")
    for number in range(num_artefacts):
        yield {"erasure_id": erasure_id, "kind": kinds[number % len(kinds)], "digest": digest(number)}


async def prepared(coordinator: Coordinator, num_artefacts: int) -> UUID:
    """A request that has purged all this and waits for its certificate."""
    await schema.upgrade(coordinator.database)
    coordinator.shell.start()
    now = datetime.now(UTC)
    federation_id, client_id, erasure_id = (uuid7(now, os.urandom(10)) for _ in range(3))
    async with coordinator.database.write() as connection:
        await accounts.add_federation(connection, federation_id, FederationCreate(name="many"), now)
        await accounts.add_clients(connection, {LEAVER: client_id}, federation_id, now)
    await coordinator.shell.handle(
        FileErasure(
            erasure_id=erasure_id,
            federation_id=federation_id,
            subjects=(LEAVER,),
            requested_by="benchmark",
            legal_deadline=now + timedelta(days=30),
            salt=os.urandom(32).hex(),
        )
    )
    batch = []
    async with coordinator.database.write() as connection:
        await connection.execute(
            t.erasures.update().values(status="verifying", chosen="retrain", fenced_at=datetime.now(UTC))
        )
        for row in rows(erasure_id, num_artefacts):
            batch.append(row)
            if len(batch) == AT_ONCE:
                await connection.execute(t.artefacts.insert(), batch)
                batch.clear()
        if batch:
            await connection.execute(t.artefacts.insert(), batch)
    return erasure_id


async def measure(home: Path, num_artefacts: int) -> dict[str, Any]:
    coordinator = Coordinator(Settings(home=home))
    try:
        erasure_id = await prepared(coordinator, num_artefacts)
        async with coordinator.database.read() as connection:
            found = await inventory.erasure_record(connection, erasure_id)
        certificates = coordinator.erasure_steps.certificates
        started, used = time.perf_counter(), time.process_time()
        certificate = await certificates.issue(found)
        sign_s, sign_cpu_s = time.perf_counter() - started, time.process_time() - used
        key = public_pem(coordinator.signing_keys.load().public_key())
        path = certificates.files.list_path(erasure_id, artefact_root(certificate) or "")
        opening = certificates.files.opening_path(erasure_id).read_bytes()
    finally:
        await coordinator.close()
    return {
        "artefacts": num_artefacts,
        "sign_s": round(sign_s, 2),
        "sign_cpu_s": round(sign_cpu_s, 2),
        "certificate_bytes": len(certificate),
        "list_mb": round(path.stat().st_size / 1e6, 1),
        **_checked(certificate, key, path, opening, digest(num_artefacts // 2)),
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6, 1),
    }


def _checked(certificate: bytes, key: bytes, path: Path, opening: bytes, wanted: str) -> dict[str, Any]:
    """What a third party does: with the list, and with the proof of one artefact instead of it."""
    started = time.perf_counter()
    with path.open("rb") as file:
        verdict = check(certificate, key, beside=Beside(list=file, client=LEAVER, opening=opening))
    assert verdict.valid and verdict.complete, verdict.checks
    verified = time.perf_counter()
    with path.open("rb") as file:
        proof = to_bytes(prove(file, wanted))
    proved = time.perf_counter()
    verdict = check(certificate, key, beside=Beside(inclusion=proof))
    assert verdict.valid and verdict.complete, verdict.checks
    return {
        "verify_s": round(verified - started, 2),
        "prove_s": round(proved - verified, 2),
        "proof_bytes": len(proof),
        "verify_proof_ms": round((time.perf_counter() - proved) * 1000, 1),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="lethe bench certificate", description=__doc__)
    parser.add_argument("--artefacts", type=int, default=1_000_000)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    printer = Printer(as_json=given.json, benchmark="certificate")
    with tempfile.TemporaryDirectory(prefix="lethe-bench-") as directory:
        printer.row(asyncio.run(measure(Path(directory), given.artefacts)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
