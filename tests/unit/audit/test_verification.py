"""What a third party is told."""

from __future__ import annotations

import subprocess
import sys

from services.audit.keys import public_pem
from services.audit.verification import NOT_CHECKED, check
from tests.golden.certificate_v1 import CERTIFICATE, KEY, PUBLIC_KEY, SUBJECTS, certificate, digest
from tests.support.signatures import key_of_seed

PEM = public_pem(KEY.public_key())


def test_a_good_certificate_passes_every_check() -> None:
    verdict = check(certificate(), PEM)
    assert verdict.valid
    assert [each.name for each in verdict.checks] == ["key", "form", "signatures", "statement", "claims"]
    assert verdict.statement is not None
    assert verdict.statement.subjects == SUBJECTS


def test_the_verdict_says_the_guarantee_and_the_deadline() -> None:
    details = {each.name: each.detail for each in check(certificate(), PEM).checks}
    assert "exact: No model named as a subject was computed from the erased data" in details["statement"]
    assert "within the legal deadline of 2026-04-01" in details["claims"]


def test_a_forged_certificate_fails_with_its_reason_and_later_checks_are_left_out() -> None:
    verdict = check(certificate(), public_pem(key_of_seed(b"x" * 32).public_key()))
    assert not verdict.valid
    assert verdict.statement is None
    assert [each.ok for each in verdict.checks] == [True, True, False, False, False]
    assert "is unknown" in verdict.checks[2].detail
    assert verdict.checks[3].detail == NOT_CHECKED


def test_an_unreadable_key_is_the_first_check_to_fail() -> None:
    verdict = check(certificate(), b"not a key")
    assert [each.ok for each in verdict.checks] == [False] * 5
    assert "no public key" in verdict.checks[0].detail


def test_a_model_that_the_certificate_speaks_of_is_recognised() -> None:
    verdict = check(certificate(), PEM, model_digest=SUBJECTS[1][1])
    assert verdict.valid
    assert "digits/left" in verdict.checks[-1].detail


def test_a_stale_model_is_not_covered() -> None:
    verdict = check(certificate(), PEM, model_digest=digest("all with b"))
    assert not verdict.valid
    assert "none of the models" in verdict.checks[-1].detail


def test_verification_needs_no_network_and_no_torch() -> None:
    program = f"""
import socket, sys
def refuse(*_): raise AssertionError("network")
socket.socket.connect = socket.getaddrinfo = refuse
from services.audit.verification import check
verdict = check(open({str(CERTIFICATE)!r}, "rb").read(), open({str(PUBLIC_KEY)!r}, "rb").read())
print(verdict.valid, "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]
