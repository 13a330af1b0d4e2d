"""Certificates of the first version are verified for ever, and what was wrong with one then is wrong with it now."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest

from services.audit.certificate import CertificateInvalid, artefact_root, sign, to_bytes, verify_bytes
from services.audit.keys import public_pem
from services.audit.v1.predicate import Statement
from services.audit.verification import LISTS_ITSELF, Beside, check
from services.core import digests
from tests.golden.certificate_v1 import KEY, certificate, statement
from tests.golden.home_0001 import HERE

PEM = public_pem(KEY.public_key())
Change = Callable[[dict[str, Any]], object]
SIGNED_THEN = {
    "history": "sha256:d54ebef54f6c25e68fff9d487bea122a1352511aef96797d30b8ccbb457b2f57",
    "approximate": "sha256:13aba08c370bc11ed267a8430f86ac5b95ce33b3f8291cd83714d39bf850777a",
    "samples": "sha256:d040c252e251b3e2b2b68e63ebb74e4b8e6653f30261f968b8130e9bace11adc",
}


@pytest.mark.parametrize("name", SIGNED_THEN)
def test_a_certificate_that_an_earlier_release_signed_verifies_bit_for_bit(name: str) -> None:
    data = (HERE / f"certificate-{name}.json").read_bytes()
    assert digests.of_bytes(data) == SIGNED_THEN[name]
    verdict = check(data, (HERE / "issuer.pub.pem").read_bytes())
    assert verdict.valid and verdict.complete, verdict.checks
    assert isinstance(verdict.statement, Statement) and verdict.statement.predicate.artefacts
    for position in range(0, len(data), 97):
        changed = bytearray(data)
        changed[position] ^= 1
        assert not check(bytes(changed), (HERE / "issuer.pub.pem").read_bytes()).valid


def test_it_has_no_list_beside_it() -> None:
    assert artefact_root(certificate()) is None
    for beside in (Beside(list=io.BytesIO(b"")), Beside(inclusion=b"{}")):
        found = check(certificate(), PEM, beside=beside).checks[-1]
        assert found.ok is False and found.detail == LISTS_ITSELF


def test_one_version_is_not_read_as_the_other() -> None:
    for other in ("https://lethe.dev/attestation/erasure/v2", "https://lethe.dev/attestation/erasure/v3"):
        claim = statement() | {"predicateType": other}
        with pytest.raises(CertificateInvalid) as caught:
            verify_bytes(to_bytes(sign(claim, KEY)), [KEY.public_key()])
        assert caught.value.stage == "statement"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda p: p["counts"]["update"].update(done=0), "planned is not done: 0 of 1 of kind update"),
        (lambda p: p["counts"]["update"].update(done=2), "planned is not done: 2 of 1"),
        (lambda p: p["counts"].pop("update"), "0 of kind update were planned but 1 are listed"),
        (lambda p: p["artefacts"].pop(), "1 of kind update were planned but 0 are listed"),
        (lambda p: p["cohorts"].pop(), "3 of kind cohort were planned but 2 are listed"),
        (lambda p: p["artefacts"][3].update(disposition=None), "has no disposition"),
        (lambda p: p["artefacts"][2].update(reason=" "), "is unreachable without a reason"),
        (lambda p: p["guarantee"].update(meaning="Trust us."), "not said plainly"),
        (lambda p: p["cohorts"][1].update(epoch_after=1), "was not fenced"),
        (lambda p: p["request"].update(submitted_at="2026-03-01T09:00:01Z"), "submitted_at is after"),
        (lambda p: p["workers"].update(confirmed=p["workers"]["unconfirmed"]), "named twice"),
        (lambda p: p["replayable"].update(num_replayable=25), "25 of 24 steps"),
        (lambda p: p.update(federation="01890a5d-ac96-774b-bcce-b302099a8059"), "unknown field 'predicate.federation'"),
    ],
)
def test_a_contradiction_in_it_is_rejected(change: Change, reason: str) -> None:
    claim = statement()
    change(claim["predicate"])
    with pytest.raises(CertificateInvalid) as caught:
        verify_bytes(to_bytes(sign(claim, KEY)), [KEY.public_key()])
    assert reason in caught.value.reason
