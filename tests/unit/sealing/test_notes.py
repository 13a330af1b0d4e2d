"""A note is read with the keys of all its owners, at its own place, or not at all."""

from __future__ import annotations

from uuid import UUID

import pytest

from services.sealing.notes import open_note, seal_note
from services.sealing.segments import Unreadable

A, B, C = (bytes([number]) * 32 for number in range(3))
ACT = UUID(int=1)


def test_a_note_needs_the_keys_of_all_its_owners() -> None:
    sealed = seal_note([A, B], b"said", ACT, 0)
    assert open_note([A, B], sealed, ACT, 0) == open_note([B, A], sealed, ACT, 0) == b"said"
    for keys in ([A], [B], [A, C], [A, B, C]):
        with pytest.raises(Unreadable):
            open_note(keys, sealed, ACT, 0)


def test_a_note_is_good_for_its_place_only() -> None:
    sealed = seal_note([A], b"said", ACT, 0)
    for act, place in ((ACT, 1), (UUID(int=2), 0)):
        with pytest.raises(Unreadable):
            open_note([A], sealed, act, place)
    for changed in (sealed[:-1], sealed[:5], b"", sealed[:-1] + bytes([sealed[-1] ^ 1])):
        with pytest.raises(Unreadable):
            open_note([A], changed, ACT, 0)


def test_a_note_has_owners() -> None:
    for keys in ([], [b"short"]):
        with pytest.raises(ValueError, match="owners"):
            seal_note(keys, b"said", ACT, 0)
