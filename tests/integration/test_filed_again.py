"""A request that a restored database does not know is filed again as it was, from its tombstone."""

from __future__ import annotations

import asyncio
import base64
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import pytest

from coordinator.tombstones.files import FileTombstoneLog
from tests.property.attacked_models import LEAVER, NAMES
from tests.property.attackers import REQUESTS, Walk
from tests.support.backups import Installation
from tests.support.restorable_coordinator import RestorableCoordinator

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]
SECRET = "whsec_" + "c2VjcmV0" * 4


async def test_a_request_keeps_what_it_asked_for_when_the_database_is_restored(
    tmp_path: Path,
) -> None:
    coordinator = RestorableCoordinator(Installation(tmp_path), settings={"callback_hosts": "127.0.0.1"})
    walk = Walk(coordinator, Random(0), "nobody")
    await coordinator.open()
    try:
        await walk.prepare({"kind": "flat"})
        coordinator.back_up()
        wanted = {
            "regulation": "Art. 17 of ours",
            "ground": "withdrawal",
            "method": "retrain",
            "recovery_rounds": 2,
            "legal_deadline": (datetime.now(UTC) + timedelta(days=7)).isoformat(),
        }
        callbacks = [{"url": "http://127.0.0.1:9/changes", "secret": SECRET}]
        body = {"federation_id": walk.federation_id, "subjects": [LEAVER], "callbacks": callbacks, **wanted}
        filed = await walk.json("POST", REQUESTS, json=body, headers={"Idempotency-Key": "one"})
        while True:
            before = await walk.json("GET", f"{REQUESTS}/{filed['id']}")
            if before["fenced_at"] is not None:
                break
            await asyncio.sleep(0.02)
        await coordinator.restore(coordinator.backups[0])
        after = await walk.json("GET", f"{REQUESTS}/{filed['id']}")
        kept = (*wanted, "params", "guarantee", "recovery", "requested_by", "subjects")
        assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
        while (await walk.json("GET", f"{REQUESTS}/{filed['id']}"))["status"] != "completed":
            for name in NAMES[1:]:
                await walk.work(name)
            await asyncio.sleep(0.02)
        envelope = await walk.answered("admin", "GET", f"{REQUESTS}/{filed['id']}/certificate")
        incidents = json.loads(base64.b64decode(envelope.json()["payload"]))["predicate"]["incidents"]
        assert [one["kind"] for one in incidents] == ["callbacks-lost"] and filed["id"] in incidents[0]["explanation"]
        written = (coordinator.place.evidence / "tombstones.jsonl").read_text("utf-8")
        assert LEAVER not in written and "127.0.0.1" not in written and SECRET not in written
        (entry,) = FileTombstoneLog(coordinator.place.evidence / "tombstones.jsonl").entries()
        assert entry.filed_as is not None and entry.filed_as.num_callbacks == 1
    finally:
        await coordinator.close()
