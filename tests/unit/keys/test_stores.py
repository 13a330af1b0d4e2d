"""What every store of keys does."""

from __future__ import annotations

import threading
from pathlib import Path
from uuid import UUID

import pytest

from coordinator.keys.directory import DirectoryKeys
from coordinator.keys.port import (
    Destroyed,
    KeyStore,
    client_key,
    cohort_key,
    earlier_client_key,
    federation_key,
    is_key_name,
    is_of_client,
)

ONE = client_key(UUID(int=1))
NAMES = [
    ONE,
    client_key(UUID(int=1), 1),
    cohort_key(UUID(int=1), 0),
    cohort_key(UUID(int=1), 10),
    federation_key(UUID(int=1)),
]


@pytest.fixture(params=["directory", "quick directory"])
def keys(request: pytest.FixtureRequest, tmp_path: Path) -> KeyStore:
    return DirectoryKeys(tmp_path / "evidence" / "keys", is_durable=request.param == "directory")


def test_a_name_keeps_its_key_and_no_two_share_one(keys: KeyStore) -> None:
    assert keys.names() == set() and [keys.find(name) for name in NAMES] == [None] * 5
    made = {name: keys.find_or_make(name) for name in NAMES}
    assert len(set(made.values())) == 5 and {len(key) for key in made.values()} == {32}
    assert {name: keys.find_or_make(name) for name in NAMES} == {name: keys.find(name) for name in NAMES} == made
    assert keys.names() == set(NAMES)
    keys.probe()
    assert keys.names() == set(NAMES)


def test_destroyed_keys_are_gone_and_the_others_stay(keys: KeyStore) -> None:
    made = {name: keys.find_or_make(name) for name in NAMES}
    for _ in range(2):
        keys.destroy(NAMES[:3])
        keys.destroy([])
        assert [keys.find(name) for name in NAMES[:3]] == [None] * 3
        assert keys.names() == set(NAMES[3:])
        assert {name: keys.find(name) for name in NAMES[3:]} == {name: made[name] for name in NAMES[3:]}


def test_no_key_is_made_under_the_name_of_a_destroyed_one(keys: KeyStore) -> None:
    keys.find_or_make(NAMES[0])
    keys.destroy(NAMES[:2])  # the second was never made, and never will be
    for name in NAMES[:2]:
        with pytest.raises(Destroyed):
            keys.find_or_make(name)
    assert keys.names() == set()


def test_threads_that_make_a_key_at_once_get_the_same(keys: KeyStore) -> None:
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.append(keys.find_or_make(ONE))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and set(found) == {keys.find(ONE)}


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        ".lock",
        ".new-key",
        "/etc/passwd",
        f"../{ONE}",
        f"{ONE}/..",
        f"{ONE}\n",
        f"{ONE}\0",
        ONE.upper(),
        ONE.removesuffix(".0"),
        f"{ONE}.1",
        "client-1.0",
        "cohort-" + str(UUID(int=1)) + ".",
        "cohort-" + str(UUID(int=1)) + "./x",
        "cohort-" + str(UUID(int=1)) + "." + "9" * 41,
        "federation-" + str(UUID(int=1)) + ".0",
        "client-" + str(UUID(int=1)) + ".٣",
        str(UUID(int=1)) + ".0",
    ],
)
def test_what_is_not_the_name_of_a_key_is_refused(keys: KeyStore, name: str) -> None:
    assert not is_key_name(name)
    with pytest.raises(ValueError, match="not the name of a key"):
        keys.find(name)
    with pytest.raises(ValueError, match="not the name of a key"):
        keys.find_or_make(name)
    made = keys.find_or_make(ONE)
    with pytest.raises(ValueError, match="not the name of a key"):
        keys.destroy([ONE, name])
    assert keys.find(ONE) == made


def test_names_say_what_they_are_for() -> None:
    text = "00000000-0000-0000-0000-000000000001"
    assert [
        f"client-{text}.0",
        f"client-{text}.1",
        f"cohort-{text}.0",
        f"cohort-{text}.10",
        f"federation-{text}",
    ] == NAMES
    assert cohort_key(UUID(int=1), "3-draft") == f"cohort-{text}.3-draft"
    for epoch in ("../x", "", "a b", -1.5):
        with pytest.raises(ValueError, match="not the name of a key"):
            cohort_key(UUID(int=1), str(epoch))
    with pytest.raises(ValueError, match="not the name of a key"):
        client_key(UUID(int=1), -1)


def test_a_clients_keys_are_all_that_it_ever_had_also_the_one_of_version_0_1(keys: KeyStore) -> None:
    names = {client_key(UUID(int=1)), client_key(UUID(int=1), 1), earlier_client_key(UUID(int=1))}
    for name in (*names, client_key(UUID(int=2)), earlier_client_key(UUID(int=2))):
        keys.find_or_make(name)
    assert {name for name in keys.names() if is_of_client(name, UUID(int=1))} == names
