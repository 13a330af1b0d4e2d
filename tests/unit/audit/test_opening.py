"""Whom a certificate is about: with the opening it can be checked, and no certificate passes for another's."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from services.audit import opening as openings
from services.audit.certificate import issue
from services.audit.keys import public_pem
from services.audit.opening import Opening
from services.audit.predicate import commit
from services.audit.verification import Beside, Check, check
from tests.golden import certificate_v1 as first
from tests.golden.certificate_v1 import KEY, SALT, SUBJECTS
from tests.golden.certificate_v2 import FEDERATION, OPENING, opening, predicate

PEM = public_pem(KEY.public_key())
OTHER = UUID("01890a5d-ac96-774b-bcce-b302099a8060")


def certificate_of(*names: str, **changes: Any) -> tuple[bytes, bytes]:
    """The certificate of a request about these clients, and its opening."""
    known = opening().model_copy(update={"clients": names, **changes})
    request = predicate().request.model_copy(
        update={"id": known.request, "subjects": tuple(sorted(map(known.commitment, names)))}
    )
    claim = predicate().model_copy(update={"request": request, "federation": known.federation})
    return issue(claim, SUBJECTS, KEY), openings.to_bytes(known)


def checked(certificate: bytes, client: str, data: bytes) -> Check:
    return check(certificate, PEM, beside=Beside(client=client, opening=data)).checks[-1]


def test_a_certificate_is_about_the_client_that_its_opening_opens() -> None:
    found = checked(*(certificate_of("hospital-b")[0], "hospital-b", OPENING.read_bytes()))
    assert (found.name, found.ok) == ("opening", True)


def test_each_of_several_clients_is_recognised_and_nobody_else() -> None:
    certificate, data = certificate_of("hospital-b", "hospital-c")
    assert checked(certificate, "hospital-b", data).ok and checked(certificate, "hospital-c", data).ok
    for name in ("hospital-a", "hospital-B", "", "hospital-b hospital-c"):
        found = checked(certificate, name, data)
        assert found.ok is False and "is not about" in found.detail


def test_certificates_of_two_clients_cannot_be_exchanged() -> None:
    """Neither the other's certificate, nor the other's opening, nor an opening in which the names are exchanged."""
    b, opening_b = certificate_of("hospital-b")
    c, opening_c = certificate_of("hospital-c", request=OTHER, salt="11" * 32)
    assert checked(b, "hospital-b", opening_b).ok and checked(c, "hospital-c", opening_c).ok
    assert checked(c, "hospital-b", opening_b).ok is False
    assert checked(c, "hospital-b", opening_c).ok is False
    forged = opening().model_copy(update={"request": OTHER, "salt": "11" * 32, "clients": ("hospital-b",)})
    assert checked(c, "hospital-b", openings.to_bytes(forged)).ok is False


def test_certificates_of_two_federations_cannot_be_exchanged() -> None:
    """A client of the same name, even under the same salt."""
    certificate, data = certificate_of("hospital-b", federation=OTHER)
    assert checked(certificate, "hospital-b", data).ok
    found = checked(certificate, "hospital-b", OPENING.read_bytes())
    assert found.ok is False and f"federation {FEDERATION}" in found.detail
    assert opening().commitment("hospital-b") != commit("hospital-b", opening().request, OTHER, SALT)


def test_certificates_of_two_requests_of_one_client_cannot_be_exchanged() -> None:
    certificate, data = certificate_of("hospital-b", request=OTHER)
    assert checked(certificate, "hospital-b", data).ok
    found = checked(certificate, "hospital-b", OPENING.read_bytes())
    assert found.ok is False and "request" in found.detail
    moved = Opening(request=OTHER, federation=FEDERATION, clients=("hospital-b",), salt="22" * 32)
    assert checked(certificate, "hospital-b", openings.to_bytes(moved)).ok is False


@pytest.mark.parametrize("data", [b"", b"{}", b"nothing", OPENING.read_bytes().replace(b'"salt":"0', b'"salt":"', 1)])
def test_what_is_no_opening_is_refused_with_the_reason(data: bytes) -> None:
    found = checked(certificate_of("hospital-b")[0], "hospital-b", data)
    assert found.ok is False and found.detail.startswith("the opening ")


@pytest.mark.parametrize("num_bytes", [0, 16, 31, 33, 64])
def test_a_salt_has_one_length(num_bytes: int) -> None:
    """HMAC pads short keys and hashes long ones: two salts of different length could be one."""
    with pytest.raises(ValueError, match="a salt has 32 bytes"):
        commit("hospital-b", OTHER, FEDERATION, bytes(num_bytes))


def test_a_certificate_of_the_first_version_is_opened_by_the_name_alone() -> None:
    data = openings.to_bytes(opening())
    assert checked(first.certificate(), "hospital-b", data).ok
    assert checked(first.certificate(), "hospital-c", data).ok is False
    moved = opening().model_copy(update={"request": OTHER})
    assert checked(first.certificate(), "hospital-b", openings.to_bytes(moved)).ok is False
