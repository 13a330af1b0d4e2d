from __future__ import annotations

import os
import threading
from pathlib import Path
from uuid import UUID

from coordinator.runtime.sealing_keys import SealingKeys

ONE, OTHER = UUID(int=1), UUID(int=2)


def test_a_client_keeps_its_key_and_no_two_share_one(tmp_path: Path) -> None:
    keys = SealingKeys(tmp_path / "evidence" / "keys")
    assert keys.find(ONE) is None and keys.owners() == set()
    made = keys.find_or_make(ONE)
    assert len(made) == 32 and keys.find_or_make(ONE) == SealingKeys(tmp_path / "evidence" / "keys").find(ONE) == made
    assert keys.find_or_make(OTHER) != made
    assert keys.owners() == {ONE, OTHER}
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "evidence" / "keys").iterdir()} == {0o600}


def test_those_who_make_a_key_at_once_get_the_same(tmp_path: Path) -> None:
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.append(SealingKeys(tmp_path).find_or_make(ONE))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len(set(found)) == 1


def test_a_destroyed_key_is_overwritten_and_a_new_one_is_another(tmp_path: Path) -> None:
    keys = SealingKeys(tmp_path)
    made = keys.find_or_make(ONE)
    os.link(tmp_path / str(ONE), tmp_path / ".held")
    keys.destroy(ONE)
    keys.destroy(ONE)
    assert keys.find(ONE) is None and keys.owners() == set()
    assert (tmp_path / ".held").read_bytes() == bytes(32)
    assert keys.find_or_make(ONE) != made
