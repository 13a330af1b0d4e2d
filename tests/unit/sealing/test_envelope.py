from __future__ import annotations

import hmac
from uuid import UUID

import pytest

from services.sealing.envelope import WRAPPED_BYTES, combined, new_data_key, unwrap, wrap
from services.sealing.segments import Unreadable

OUTER, OTHER = bytes(range(32)), bytes(range(1, 33))
OBJECT = UUID(int=7)


def test_a_wrapped_key_is_unwrapped_with_the_same_key_for_the_same_object_only() -> None:
    key = new_data_key()
    wrapped = wrap(OUTER, key, OBJECT)
    assert len(wrapped) == WRAPPED_BYTES == 60
    assert unwrap(OUTER, wrapped, OBJECT) == key
    for outer, object_id in ((OTHER, OBJECT), (OUTER, UUID(int=8))):
        with pytest.raises(Unreadable):
            unwrap(outer, wrapped, object_id)


def test_a_wrapped_key_of_which_a_bit_or_the_length_was_changed_is_unreadable() -> None:
    wrapped = wrap(OUTER, new_data_key(), OBJECT)
    changed = [wrapped[:n] + bytes([wrapped[n] ^ 1 << n % 8]) + wrapped[n + 1 :] for n in range(len(wrapped))]
    for text in [*changed, wrapped[:-1], wrapped + b"\0", b""]:
        with pytest.raises(Unreadable):
            unwrap(OUTER, text, OBJECT)


def test_no_two_data_keys_and_no_two_wrappings_of_one_are_equal() -> None:
    assert len({new_data_key() for _ in range(100)}) == 100
    assert len({wrap(OUTER, OTHER, OBJECT)[:12] for _ in range(100)}) == 100


def test_a_key_of_another_length_is_refused() -> None:
    for outer, key in ((OUTER[:16], OTHER), (OUTER, OTHER[:31])):
        with pytest.raises(ValueError, match="32 bytes"):
            wrap(outer, key, OBJECT)
        with pytest.raises(ValueError, match="32 bytes"):
            combined(outer, key)


def test_a_wrapped_key_of_the_first_version_can_still_be_unwrapped() -> None:
    nonce, key, tag = (
        "a51336e3e5601848553cf8b6",
        "a8afb66c10155705336f83c8f897ec89bb76916f50334affef6865f9fb8b61d8",
        "d833db10b365b63aaa314d953a6b7a6d",
    )
    assert unwrap(OUTER, bytes.fromhex(nonce + key + tag), OBJECT) == OTHER


def test_the_key_of_a_client_in_a_cohort_is_rfc_5869_over_both() -> None:
    extracted = hmac.digest(bytes(32), OUTER + OTHER, "sha256")
    assert combined(OUTER, OTHER) == hmac.digest(extracted, b"lethe client and cohort v1\x01", "sha256")
    assert len({combined(OUTER, OTHER), combined(OTHER, OUTER), combined(OUTER, OUTER), combined(OTHER, OTHER)}) == 4
