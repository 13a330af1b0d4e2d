"""Keys that end with the process, for simulations."""

from __future__ import annotations

import os
from collections.abc import Collection

from coordinator.keys.port import KeyName, checked
from services.sealing.segments import KEY_BYTES


class MemoryKeys:
    def __init__(self) -> None:
        self._keys: dict[KeyName, bytes] = {}

    def find(self, name: KeyName) -> bytes | None:
        return self._keys.get(checked(name))

    def find_or_make(self, name: KeyName) -> bytes:
        return self._keys.setdefault(checked(name), os.urandom(KEY_BYTES))

    def destroy(self, names: Collection[KeyName]) -> None:
        for name in [checked(name) for name in names]:
            self._keys.pop(name, None)

    def names(self) -> set[KeyName]:
        return set(self._keys)

    def probe(self) -> None:
        """Memory always takes one."""
