"""Check a certificate with nothing but the file and the public key, and say what was checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, get_args

from services.audit.certificate import CertificateInvalid, Stage, Statement, verify_bytes
from services.audit.keys import KeyUnreadable, key_id, read_public_keys
from services.audit.predicate import Request

NOT_CHECKED: Final = "not checked, because an earlier check failed"


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    ok: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Verdict:
    checks: tuple[Check, ...]
    statement: Statement | None
    """What was certified; None unless the certificate itself is valid."""

    @property
    def valid(self) -> bool:
        return all(check.ok for check in self.checks)


def check(certificate: bytes, public_key_pem: bytes, *, model_digest: str | None = None) -> Verdict:
    """`public_key_pem` may hold several keys: every signature must be by one of them.

    With `model_digest`, that model must also be one that the certificate speaks of.
    """
    try:
        keys = read_public_keys(public_key_pem)
    except KeyUnreadable as error:
        return Verdict((Check("key", False, str(error)), *_checks_after("key")), None)
    key_check = Check("key", True, ", ".join(key_id(key) for key in keys))
    try:
        statement = verify_bytes(certificate, keys)
    except CertificateInvalid as invalid:
        return Verdict((key_check, *_checks_until(invalid)), None)
    checks = (key_check, *_passed_checks(statement))
    if model_digest is not None:
        checks = (*checks, _check_model(statement, model_digest))
    return Verdict(checks, statement)


def _checks_after(name: str) -> tuple[Check, ...]:
    stages = ("key", *get_args(Stage))
    return tuple(Check(stage, False, NOT_CHECKED) for stage in stages[stages.index(name) + 1 :])


def _checks_until(invalid: CertificateInvalid) -> tuple[Check, ...]:
    stages: tuple[str, ...] = get_args(Stage)
    passed = stages[: stages.index(invalid.stage)]
    return (
        *(Check(stage, True, "as it should be") for stage in passed),
        Check(invalid.stage, False, invalid.reason),
        *_checks_after(invalid.stage),
    )


def _passed_checks(statement: Statement) -> tuple[Check, ...]:
    predicate = statement.predicate
    details: dict[Stage, str] = {
        "form": "a DSSE envelope with an in-toto statement, in canonical form",
        "signatures": f"Ed25519, by the issuer {predicate.issuer.key_id}",
        "statement": (
            f"erasure {predicate.request.id} by {predicate.method.name}, {predicate.guarantee.kind}: "
            f"{predicate.guarantee.meaning}"
        ),
        "claims": (
            f"{len(statement.subject)} models served, {len(predicate.cohorts)} cohorts fenced, "
            f"{len(predicate.artefacts)} artefacts with a disposition each, planned = done; "
            f"{_punctuality(predicate.request)}"
        ),
    }
    return tuple(Check(stage, True, detail) for stage, detail in details.items())


def _check_model(statement: Statement, digest: str) -> Check:
    names = [name for name, served in statement.subjects if served == digest]
    if names:
        return Check("model", True, f"{digest} is the subject {', '.join(names)}")
    return Check("model", False, f"{digest} is none of the models that this certificate speaks of")


def _punctuality(request: Request) -> str:
    if request.legal_deadline is None:
        return f"completed at {request.completed_at.isoformat()}"
    when = "after" if request.completed_at > request.legal_deadline else "within"
    return f"completed {when} the legal deadline of {request.legal_deadline.isoformat()}"
