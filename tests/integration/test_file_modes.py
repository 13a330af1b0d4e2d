"""What a coordinator keeps on the disk is its owner's alone, whatever the umask and whoever made it before."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.runtime.accounts import ensure_admin
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.settings import Settings
from tests.support.federation import federation

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _careless_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def modes(home: Path) -> dict[str, int]:
    """By path, of whatever is not private."""
    found = {path: path.lstat().st_mode for path in (home, *home.rglob("*"))}
    assert any(stat.S_ISREG(mode) for mode in found.values())
    return {
        str(path): stat.S_IMODE(mode)
        for path, mode in found.items()
        if stat.S_IMODE(mode) != (0o700 if stat.S_ISDIR(mode) else 0o600)
    }


async def test_everything_under_home_is_for_its_owner_alone(tmp_path: Path) -> None:
    async with federation(tmp_path, "a", "b") as f:
        await ensure_admin(f.coordinator)
        f.work()
        run = await f.create_run(history={"updates": {}}, stop={"rounds": 2})
        assert (await f.wait_for_run(run)).status == "completed"
        assert (await f.wait_for_erasure(await f.erase("a"))).status == "completed"
        home = tmp_path / "home"
        names = {path.name for path in home.rglob("*")}
        assert names >= {"lethe.db", "lethe.db-wal", "lethe.db-shm", "admin.token", "blobs", "keys", "signing-key.pem"}
        assert modes(home) == {}


async def test_a_home_that_others_could_read_is_tightened_at_start(tmp_path: Path) -> None:
    async with federation(tmp_path, "a") as f:
        await ensure_admin(f.coordinator)
    home = tmp_path / "home"
    for path in (home, *home.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    (home / "link").symlink_to("/")
    foreign = home / "notes.txt"
    foreign.touch(0o644)
    coordinator = Coordinator(Settings(home=home))
    await coordinator.start_compute()
    await coordinator.close()
    foreign.unlink()
    (home / "link").unlink()
    assert modes(home) == {}
