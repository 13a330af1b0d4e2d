"""The committed certificate: still valid, still made the same way, and dead after the change of any one byte."""

from __future__ import annotations

import io

import pytest

from services.audit.certificate import CertificateInvalid, issue, verify_bytes
from services.audit.keys import read_public_keys
from services.audit.predicate import Package, Statement
from services.audit.v1.predicate import commit
from services.audit.verification import Beside, check
from services.core import digests
from tests.golden import certificate_v1 as golden
from tests.golden import certificate_v2 as second

CERTIFICATE = golden.CERTIFICATE.read_bytes()
KEYS = read_public_keys(golden.PUBLIC_KEY.read_bytes())


def test_golden_certificate_verifies() -> None:
    statement = verify_bytes(CERTIFICATE, KEYS)
    assert statement.predicate == golden.predicate()
    assert statement.subjects == golden.SUBJECTS


def test_golden_certificate_has_its_digest() -> None:
    assert digests.of_bytes(CERTIFICATE) == golden.DIGEST.read_text().strip()


def test_the_same_claim_and_key_give_the_same_bytes() -> None:
    assert golden.certificate() == CERTIFICATE


def test_golden_public_key_is_that_of_rfc_8032() -> None:
    expected = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    assert [key.public_bytes_raw().hex() for key in KEYS] == [expected]


def test_flipping_any_byte_invalidates_the_certificate() -> None:
    changed = bytearray(CERTIFICATE)
    for position in range(len(changed)):
        changed[position] ^= 1 << position % 8
        with pytest.raises(CertificateInvalid):
            verify_bytes(bytes(changed), KEYS)
        changed[position] = CERTIFICATE[position]


def test_flipping_any_bit_of_a_signature_or_its_key_id_invalidates_the_certificate() -> None:
    changed = bytearray(CERTIFICATE)
    for position in range(CERTIFICATE.index(b'"signatures"'), len(changed)):
        for bit in range(8):
            changed[position] ^= 1 << bit
            with pytest.raises(CertificateInvalid):
                verify_bytes(bytes(changed), KEYS)
            changed[position] = CERTIFICATE[position]


def test_cutting_the_certificate_anywhere_invalidates_it() -> None:
    for length in range(len(CERTIFICATE)):
        with pytest.raises(CertificateInvalid):
            verify_bytes(CERTIFICATE[:length], KEYS)


def test_names_appear_only_as_commitments_that_need_the_salt() -> None:
    assert b"hospital" not in golden.predicate().model_dump_json().encode()
    (subject,) = verify_bytes(CERTIFICATE, KEYS).predicate.request.subjects
    assert subject == commit("hospital-b", golden.SALT)
    assert subject != commit("hospital-b", bytes(32))


def test_the_golden_certificate_of_the_second_version_is_still_made_and_verified_the_same_way() -> None:
    data, beside = second.CERTIFICATE.read_bytes(), second.LIST.read_bytes()
    assert digests.of_bytes(data) == second.DIGEST.read_text().strip()
    assert (second.certificate(), second.listed()[0]) == (data, beside)
    opening = second.OPENING.read_bytes()
    verdict = check(
        data,
        golden.PUBLIC_KEY.read_bytes(),
        beside=Beside(list=io.BytesIO(beside), client="hospital-b", opening=opening),
    )
    assert verdict.valid and verdict.complete, verdict.checks
    assert b"hospital" not in second.predicate().model_dump_json().encode()


def test_flipping_any_byte_invalidates_the_certificate_of_the_second_version() -> None:
    data = second.CERTIFICATE.read_bytes()
    changed = bytearray(data)
    for position in range(len(changed)):
        changed[position] ^= 1 << position % 8
        with pytest.raises(CertificateInvalid):
            verify_bytes(bytes(changed), KEYS)
        changed[position] = data[position]


def test_a_certificate_names_the_package_of_its_method_and_one_that_does_not_is_still_canonical() -> None:
    claim = second.predicate()
    package = Package(name="lethe-own-method", version="0.1.0")
    named = claim.model_copy(update={"method": claim.method.model_copy(update={"package": package})})
    data = issue(named, golden.SUBJECTS, golden.KEY)
    statement = verify_bytes(data, KEYS)
    assert isinstance(statement, Statement) and statement.predicate.method.package == package
    said = {one.name: one.detail for one in check(data, golden.PUBLIC_KEY.read_bytes()).checks}
    assert f"by {claim.method.name} of lethe-own-method 0.1.0, " in said["statement"]
    assert "package" not in claim.model_dump(mode="json")["method"]
