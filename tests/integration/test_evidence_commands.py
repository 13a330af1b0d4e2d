"""`lethe evidence` and `lethe keys` on a home whose coordinator is stopped."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from coordinator.runtime.signing import SIGNING_KEY
from lethe.cli import app
from lethe.failures import CommandFailed
from tests.support.federation import Federation, federation, reopened


async def _erase(f: Federation, *names: str) -> None:
    for name in names:
        await f.wait_for_erasure(await f.erase(name))
    await f.coordinator.evidence.look()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    async def make() -> None:
        async with federation(tmp_path, "c0", "c1", "c2") as f:
            await _erase(f, "c0", "c1")

    asyncio.run(make())
    return tmp_path / "home"


def run(home: Path, *words: str) -> Any:
    done = CliRunner().invoke(app, [*words, "--home", str(home), "--json"])
    if done.exception is not None:
        raise done.exception
    return json.loads(done.stdout)


def test_nothing_is_accepted_while_nothing_is_lost(home: Path) -> None:
    assert run(home, "evidence", "show")["log"] == "ok"
    with pytest.raises(CommandFailed, match="nothing is lost"):
        run(home, "evidence", "accept-loss", "--yes")
    with pytest.raises(CommandFailed, match="without --lost"):
        run(home, "keys", "rotate", "--lost")
    shown = run(home, "evidence", "show")
    assert shown["incidents"] == [] and shown["tombstones_known"] == shown["tombstones_in_log"] == 2


def test_a_loss_is_accepted_by_a_person_only(home: Path) -> None:
    log = home / "evidence" / "tombstones.jsonl"
    log.write_bytes(b"")
    assert "has 0 of the 2 entries" in run(home, "evidence", "show")["log"]
    with pytest.raises(CommandFailed, match="a person's word"):
        run(home, "evidence", "accept-loss")
    assert log.read_bytes() == b""
    told = run(home, "evidence", "accept-loss", "--yes")
    assert told["kind"] == "tombstones-lost" and "2 entries were written again" in told["explanation"]
    shown = run(home, "evidence", "show")
    assert shown["log"] == "ok" and shown["incidents"] == [told]

    async def reopen() -> None:
        async with reopened(home.parent) as f:
            assert {entry.requested_by for entry in f.coordinator.tombstones.entries()} == {"test"}
            await _erase(f, "c2")

    asyncio.run(reopen())
    assert run(home, "evidence", "show")["tombstones_known"] == 3


def test_a_key_is_rotated_and_a_lost_one_replaced(home: Path) -> None:
    first = run(home, "evidence", "show")["signing_key"]
    second = run(home, "keys", "rotate")
    assert second["kind"] == "signing-key-rotated" and first in second["explanation"]
    (home / "evidence" / SIGNING_KEY).unlink()
    assert not run(home, "evidence", "show")["signing_key_present"]
    with pytest.raises(CommandFailed, match="lethe keys rotate --lost"):
        run(home, "keys", "rotate")
    third = run(home, "keys", "rotate", "--lost")
    shown = run(home, "evidence", "show")
    assert shown["signing_key_present"] and shown["signing_key"] == third["key_id"]
    assert shown["earlier_keys"] == [first, second["key_id"]]
    assert [one["kind"] for one in shown["incidents"]] == ["signing-key-rotated", "signing-key-lost"]


def test_a_key_that_is_in_the_way_of_a_lost_one_is_set_aside(home: Path) -> None:
    key = home / "evidence" / SIGNING_KEY
    key.write_text("not a key")
    run(home, "keys", "rotate", "--lost")
    assert key.with_name(f"{SIGNING_KEY}.set-aside").read_text() == "not a key"
    assert run(home, "evidence", "show")["signing_key_present"]
