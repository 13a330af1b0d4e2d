"""Signing keys as files."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from services.audit.keys import (
    KeyUnreadable,
    generate_key,
    key_id,
    load_key,
    load_or_create_key,
    public_pem,
    read_public_keys,
    save_key,
)
from services.core import digests
from tests.support.signatures import key_of_seed


def test_a_saved_key_is_loaded_again(tmp_path: Path) -> None:
    key = generate_key()
    save_key(tmp_path / "keys" / "issuer.pem", key)
    assert key_id(load_key(tmp_path / "keys" / "issuer.pem").public_key()) == key_id(key.public_key())


def test_a_key_file_is_for_its_owner_alone_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    save_key(tmp_path / "issuer.pem", generate_key())
    assert stat.S_IMODE((tmp_path / "issuer.pem").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["issuer.pem"]


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    save_key(tmp_path / "issuer.pem", key_of_seed(b"1" * 32))
    before = (tmp_path / "issuer.pem").read_bytes()
    with pytest.raises(FileExistsError):
        save_key(tmp_path / "issuer.pem", key_of_seed(b"2" * 32))
    assert (tmp_path / "issuer.pem").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_processes_that_start_together_share_one_key(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        keys = list(pool.map(lambda _: load_or_create_key(tmp_path / "issuer.pem"), range(8)))
    assert len({key_id(key.public_key()) for key in keys}) == 1


def test_key_id_is_the_digest_of_the_raw_public_key() -> None:
    public = key_of_seed(b"1" * 32).public_key()
    assert key_id(public) == digests.of_bytes(public.public_bytes_raw())


def test_a_pem_text_may_hold_several_public_keys() -> None:
    publics = [key_of_seed(bytes([n]) * 32).public_key() for n in (1, 2)]
    text = b"issuer\n" + public_pem(publics[0]) + b"\nhospital-a\n" + public_pem(publics[1])
    assert [key_id(key) for key in read_public_keys(text)] == [key_id(key) for key in publics]


@pytest.mark.parametrize(
    "text", [b"", b"hello", public_pem(key_of_seed(b"1" * 32).public_key()).replace(b"M", b"!", 1)]
)
def test_a_text_without_public_key_is_refused(text: bytes) -> None:
    with pytest.raises(KeyUnreadable):
        read_public_keys(text)


def test_keys_of_another_kind_are_refused(tmp_path: Path) -> None:
    other = generate_private_key(SECP256R1())
    path = tmp_path / "other.pem"
    path.write_bytes(other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with pytest.raises(KeyUnreadable, match="not Ed25519"):
        load_key(path)
    with pytest.raises(KeyUnreadable, match="not Ed25519"):
        read_public_keys(other.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


def test_a_private_key_given_as_public_key_is_refused(tmp_path: Path) -> None:
    save_key(tmp_path / "issuer.pem", generate_key())
    with pytest.raises(KeyUnreadable):
        read_public_keys((tmp_path / "issuer.pem").read_bytes())


def test_a_damaged_key_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "issuer.pem").write_bytes(b"-----BEGIN PRIVATE KEY-----\n")
    with pytest.raises(KeyUnreadable):
        load_or_create_key(tmp_path / "issuer.pem")
