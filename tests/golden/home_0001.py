"""How the homes of schema 0001 were made, by the release that had it: `python -m tests.golden.home_0001`.

Six clients and two runs: `whole` is completed and keeps a sealed history; from it three erasures were made: of client
c4 by retraining, of client c5 by FedEraser, of two samples of client c3. Then `halves` was begun in two clusters, and
stands still half-way. Later releases have to upgrade these files; the script only says what they hold.
"""

from __future__ import annotations

import asyncio
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from sqlalchemy.engine import make_url

from coordinator.engine.messages import PauseRun
from coordinator.store import tables as t
from services.audit.keys import load_key, public_pem
from tests.support.federation import Federation, federation
from tests.support.servers import PostgresServer, postgres_binaries

HERE = Path(__file__).parent / "home-0001"
CLIENTS = ("c0", "c1", "c2", "c3", "c4", "c5")
ERASURES: dict[str, dict[str, Any]] = {
    "history": {"names": ("c4",)},
    "approximate": {"names": ("c5",), "method": "federaser", "guarantee": "approximate"},
    "samples": {"names": ("c3",), "scope": "samples", "samples": {"c3": [0, 1]}},
}


async def play(f: Federation) -> None:
    f.work()
    sealed: dict[str, Any] = {"retention": {"updates": "none"}, "history": {"updates": {"compression": "none"}}}
    whole = await f.create_run(name="whole", stop={"rounds": 3}, **sealed)
    await _rested(f, whole)
    for request in ERASURES.values():
        await f.wait_for_erasure(await f.erase(*request["names"], **{k: v for k, v in request.items() if k != "names"}))
        await _rested(f, whole)
    clusters = {"kind": "clusters", "num_clusters": 2, "assignment": "random"}
    halves = await f.create_run(name="halves", topology=clusters, stop={"rounds": 40})
    for row in await f.rows(t.cohorts, t.cohorts.c.run_id == halves, t.cohorts.c.kind == "line"):
        await f.wait(t.cohorts, row.id, lambda cohort: cohort.round >= 2)
    await f.coordinator.shell.handle(PauseRun(halves, "operator", "half-way"))


async def _rested(f: Federation, run_id: Any) -> None:
    """The run is at its end, and every job is done."""
    await f.wait_for_run(run_id)
    for row in await f.rows(t.jobs):
        await f.wait(t.jobs, row.id, lambda job: job.status in ("done", "cancelled"))


async def certificates(f: Federation) -> dict[str, bytes]:
    rows = sorted(await f.rows(t.certificates), key=lambda row: row.issued_at)
    return {name: row.envelope.encode() for name, row in zip(ERASURES, rows, strict=True)}


async def make(folder: Path, url: str | None) -> dict[str, bytes]:
    async with federation(folder, *CLIENTS, url=url) as f:
        await play(f)
        return await certificates(f)


def write_home(back_end: str, url: str | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        found = asyncio.run(make(Path(folder), url))
        if url is None:
            key = load_key(home / "evidence" / "signing-key.pem")
            (HERE / "issuer.pub.pem").write_bytes(public_pem(key.public_key()))
            for name, content in found.items():
                (HERE / f"certificate-{name}.json").write_bytes(content)
        else:
            place = make_url(url)
            command = [postgres_binaries() / "pg_dump", "--no-owner", "--inserts", "-h", place.host, "-p", place.port]
            command += ["-U", place.username, "-f", home / "dump.sql", place.database]
            subprocess.run([str(word) for word in command], check=True)
        with tarfile.open(HERE / f"{back_end}.tar.gz", "w:gz") as archive:
            archive.add(home, "home")


def main() -> None:
    HERE.mkdir(exist_ok=True)
    write_home("sqlite", None)
    server = PostgresServer()
    try:
        write_home("postgres", server.new_database())
    finally:
        server.dispose()


if __name__ == "__main__":
    main()
