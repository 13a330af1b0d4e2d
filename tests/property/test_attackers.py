"""No certificate is false, whatever an attacker with one token, crashes and restored backups do meanwhile.

Seeded walks. In each, four clients train honestly by single steps, in a flat federation, in clusters or in a tree,
while one token is an attacker's: the leaver's, a client's that stays, or an operator's. Between any two steps the
attacker may claim, download any digest that ever was, upload bytes that it knows (its own old updates, models that it
was given or could download, superseded ones among them) for any task that it ever had, for none, or for one that is not
its own, twice, in parts or half, name any digest in a result for any task, or start runs from any digest. Clients are
erased, also two at once; backups of database and blobs are taken and put back, with the evidence and keys of now. Where
the coordinator is a process of its own it is killed besides, and its next life dies at any crash point of the code.

At the end every request is certified, if need be after it was tried again; and for every certificate: it verifies,
with its list; what the list calls deleted is nowhere among all objects that the keys of now open, and nobody is given
it, unless a client that stays has done the same work again on a clean model; no served model has an erased client in
its recorded ancestry nor, by its numbers, in its value; no row and no object of an update of the leaver is left.

Not covered: changed copies of what an attacker has seen, which cannot be told from an update (certificates say so);
several tokens in one hand; approximate methods and erasures of samples; Redis and compute processes of their own.

`LETHE_WALKS=100` makes so many walks of each form; those on Postgres are made only then.
"""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from random import Random
from typing import Any

import pytest

import coordinator
from services.audit.verification import Beside, check
from services.core import digests
from tests.property.attackers import LEAVER, NAMES, REQUESTS, Walk, numbers_of
from tests.support.backups import Installation, store_of
from tests.support.restorable_coordinator import RestorableCoordinator, RestorableProcess, crash_points
from tests.support.searching import opened

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]
POINTS = crash_points(Path(str(coordinator.__file__)).parent)
ATTACKERS = [LEAVER, "b", "operator"]
NUM_WALKS = int(os.environ.get("LETHE_WALKS", "0"))
NUM_STEPS = 45
OF_BYTES = {"update", "history", "checkpoint", "merge", "step", "upload", "part"}


async def walked(coordinator: RestorableCoordinator, seed: int) -> None:
    random = Random(seed)
    walk = Walk(coordinator, random, ATTACKERS[seed % len(ATTACKERS)])
    await coordinator.open()
    try:
        await walk.prepare()
        for _ in range(NUM_STEPS):
            await walk.step(POINTS)
        requests = await walk.finish()
        certified = [one for one in requests if one["status"] == "completed" and not one["duplicate_of"]]
        erased = {name for one in certified for name in one["subjects"]}
        assert {name for one in requests for name in one["subjects"]} == erased, requests
        for one in certified:
            await no_certificate_is_false(walk, one, erased)
        await nothing_served_holds_an_erased_client(walk, erased)
    except AssertionError as broken:
        raise AssertionError("\n".join([str(broken), *walk.said[-60:]])) from broken
    finally:
        await coordinator.close()


async def no_certificate_is_false(walk: Walk, request: Any, erased: set[str]) -> None:
    path = f"{REQUESTS}/{request['id']}"
    key = (await walk.json("GET", "/v1/erasure/discovery"))["public_key"].encode()
    envelope = await walk.answered("admin", "GET", f"{path}/certificate")
    listed = await walk.answered("admin", "GET", f"{path}/certificate/artefacts")
    verdict = check(envelope.content, key, beside=Beside(list=io.BytesIO(listed.content)))
    assert verdict.valid, verdict.checks
    leaves = [json.loads(line) for line in listed.content.splitlines()]
    gone = {one["digest"] for one in leaves if one["kind"] in OF_BYTES and one["disposition"] == "deleted"}
    if LEAVER in request["subjects"]:
        assert not walk.own & {one["digest"] for one in leaves if one["disposition"].startswith("also-held")}
    gone -= walk.sent_again - walk.own
    gone -= {digest for digest, made in walk.sent.items() if made_again_by_who_stays(made, erased, gone)}
    keys = walk.coordinator.place.keys()
    destroyed = {one["digest"] for one in leaves if one["kind"] == "sealing-key"}
    assert not destroyed & {digests.of_bytes(key) for key in keys.values()}
    readable = {digests.of_bytes(one.plain) for one in opened([await store_of(walk.coordinator.place)], keys)}
    left = [one for one in leaves if one["digest"] in gone & readable]
    assert not left, left
    for digest in sorted(gone):
        for who in [*NAMES, "operator"]:
            answer = await walk.answered(who, "GET", f"/v1/blobs/{digest}")
            assert answer.status_code in (401, 403, 404, 410), (who, digest, answer)


def made_again_by_who_stays(made: set[tuple[str, str]], erased: set[str], gone: set[str]) -> bool:
    """Whether an honest client that stays may have made these bytes of a clean model: what it sent before a fence and
    never submitted is deleted, and the same work gives it the same bytes again."""
    return any(weights not in gone for _, weights in made) and all(name not in erased for name, _ in made)


async def nothing_served_holds_an_erased_client(walk: Walk, erased: set[str]) -> None:
    runs = [run["id"] for run in await walk.pages("/v1/runs")]
    heads = [c for run in runs for c in await walk.pages(f"/v1/runs/{run}/cohorts") if c["head"]]
    for head in heads:
        lineage = await walk.json("GET", f"/v1/checkpoints/{head['head']}/lineage")
        assert not erased & set(lineage["clients"])
        model = await walk.answered("admin", "GET", f"/v1/checkpoints/{head['head']}/model")
        if model.status_code == 200:
            for name in erased:
                assert (numbers_of(model.content, name) < 0.05).all(), (name, head)
    store = await store_of(walk.coordinator.place)
    plain = {digests.of_bytes(one.plain) for one in opened([store], walk.coordinator.place.keys())}
    if LEAVER in erased:
        assert not walk.own & (plain | {row.digest for row in store.rows if row.digest is not None})


@pytest.mark.parametrize("seed", range(NUM_WALKS or 6))
async def test_no_certificate_is_false_whatever_an_attacker_does(seed: int, tmp_path: Path) -> None:
    await walked(RestorableCoordinator(Installation(tmp_path)), seed)


@pytest.mark.parametrize("seed", range(101, 101 + (NUM_WALKS or 1)))
async def test_no_certificate_is_false_whenever_the_coordinator_is_killed(seed: int, tmp_path: Path) -> None:
    await walked(RestorableProcess(Installation(tmp_path)), seed)


@pytest.mark.parametrize("seed", range(200, 200 + NUM_WALKS))
async def test_no_certificate_is_false_on_postgres(seed: int, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    server = request.getfixturevalue("postgres_server")
    place = Installation(tmp_path, server, server.new_database(), None, "postgres")
    await walked(RestorableProcess(place), seed)
