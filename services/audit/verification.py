"""Check a certificate with nothing but the file and the public key, and say what was checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import BinaryIO, Final, get_args

from services.audit import inclusion
from services.audit.artefact_list import ListInvalid, tally
from services.audit.certificate import AnyStatement, CertificateInvalid, Stage, verify_bytes
from services.audit.inclusion import ProofInvalid
from services.audit.keys import KeyUnreadable, key_id, read_public_keys
from services.audit.opening import OpeningInvalid, check_is_about
from services.audit.predicate import Method, Request, Statement

NOT_CHECKED: Final = "not checked, because an earlier check failed"
NOT_AT_HAND: Final = "list not at hand: which artefacts it accounts for is not checked"
LISTS_ITSELF: Final = "a certificate of the first version lists its artefacts itself; there is no file beside it"


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    ok: bool | None
    """None: what it takes is not at hand."""
    detail: str


@dataclass(frozen=True, slots=True)
class Beside:
    """What a verifier has beside the certificate: the list of artefacts, proof that one is on it, or a client's name
    with the opening of the pseudonyms."""

    list: BinaryIO | None = None
    inclusion: bytes | None = None
    client: str | None = None
    opening: bytes | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    checks: tuple[Check, ...]
    statement: AnyStatement | None
    """What was certified; None unless the certificate itself is valid."""

    @property
    def valid(self) -> bool:
        """Nothing that was checked fails."""
        return all(check.ok is not False for check in self.checks)

    @property
    def complete(self) -> bool:
        """Everything was checked."""
        return all(check.ok is not None for check in self.checks)


def check(
    certificate: bytes, public_key_pem: bytes, *, model_digest: str | None = None, beside: Beside | None = None
) -> Verdict:
    """`public_key_pem` may hold several keys: every signature must be by one of them.

    With `model_digest`, that model must also be one that the certificate speaks of.
    """
    beside = beside or Beside()
    try:
        keys = read_public_keys(public_key_pem)
    except KeyUnreadable as error:
        return Verdict((Check("key", False, str(error)), *_checks_after("key")), None)
    key_check = Check("key", True, ", ".join(key_id(key) for key in keys))
    try:
        statement = verify_bytes(certificate, keys)
    except CertificateInvalid as invalid:
        return Verdict((key_check, *_checks_until(invalid)), None)
    checks = (key_check, *_passed_checks(statement), *_checks_beside(statement, beside))
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


def _passed_checks(statement: AnyStatement) -> tuple[Check, ...]:
    predicate = statement.predicate
    details: dict[Stage, str] = {
        "form": "a DSSE envelope with an in-toto statement, in canonical form",
        "signatures": f"Ed25519, by the issuer {predicate.issuer.key_id}",
        "statement": (
            f"erasure {predicate.request.id}{_place(statement)} by {_method(statement)}, "
            f"{predicate.guarantee.kind}: "
            f"{predicate.guarantee.meaning}"
        ),
        "claims": (
            f"{len(statement.subject)} models served, {len(predicate.cohorts)} cohorts fenced, "
            f"{_num_artefacts(statement)} artefacts with a disposition each, planned = done; "
            f"{_punctuality(predicate.request)}"
        ),
    }
    return tuple(Check(stage, True, detail) for stage, detail in details.items())


def _place(statement: AnyStatement) -> str:
    return f" in federation {statement.predicate.federation}" if isinstance(statement, Statement) else ""


def _method(statement: AnyStatement) -> str:
    method = statement.predicate.method
    package = method.package if isinstance(method, Method) else None
    return method.name if package is None else f"{method.name} of {package.name} {package.version}"


def _num_artefacts(statement: AnyStatement) -> int:
    if isinstance(statement, Statement):
        return statement.predicate.artefacts.num_leaves
    return len(statement.predicate.artefacts)


def _checks_beside(statement: AnyStatement, beside: Beside) -> tuple[Check, ...]:
    checks = []
    if isinstance(statement, Statement):
        if beside.list is not None:
            checks.append(_check_list(statement, beside.list))
        elif beside.inclusion is None:
            checks.append(Check("list", None, NOT_AT_HAND))
        if beside.inclusion is not None:
            checks.append(_check_inclusion(statement, beside.inclusion))
    else:
        given = {"list": beside.list, "inclusion": beside.inclusion}
        checks += [Check(name, False, LISTS_ITSELF) for name, value in given.items() if value is not None]
    if beside.client is not None and beside.opening is not None:
        checks.append(_check_opening(statement, beside.client, beside.opening))
    return tuple(checks)


def _check_list(statement: Statement, file: BinaryIO) -> Check:
    certified = statement.predicate.artefacts
    try:
        found = tally(file)
    except ListInvalid as invalid:
        return Check("list", False, f"the list was changed: {invalid}")
    if found.num_leaves != certified.num_leaves or found.root != certified.root:
        return Check(
            "list",
            False,
            f"this is not the certificate's list: it has {found.num_leaves} leaves and the root {found.root}; "
            f"certified are {certified.num_leaves} and {certified.root}",
        )
    for kind in sorted(found.kinds.keys() | certified.kinds.keys()):
        if found.kinds.get(kind) != certified.kinds.get(kind):
            return Check("list", False, f"the certificate counts its {kind} artefacts otherwise than its list has them")
    return Check("list", True, f"{found.num_leaves} leaves with the certified root {found.root}")


def _check_inclusion(statement: Statement, proof: bytes) -> Check:
    try:
        leaves = inclusion.read(proof, statement.predicate.artefacts)
    except ProofInvalid as invalid:
        return Check("inclusion", False, str(invalid))
    said = "; ".join(sorted({f"{leaf.kind} {leaf.digest} is {leaf.disposition}" for leaf in leaves}))
    return Check("inclusion", True, f"on the list: {said}")


def _check_opening(statement: AnyStatement, client: str, data: bytes) -> Check:
    try:
        check_is_about(client, data, statement)
    except OpeningInvalid as invalid:
        return Check("opening", False, str(invalid))
    return Check("opening", True, f"the certificate is about the client {client}")


def _check_model(statement: AnyStatement, digest: str) -> Check:
    names = [name for name, served in statement.subjects if served == digest]
    if names:
        return Check("model", True, f"{digest} is the subject {', '.join(names)}")
    return Check("model", False, f"{digest} is none of the models that this certificate speaks of")


def _punctuality(request: Request) -> str:
    if request.legal_deadline is None:
        return f"completed at {request.completed_at.isoformat()}"
    when = "after" if request.completed_at > request.legal_deadline else "within"
    return f"completed {when} the legal deadline of {request.legal_deadline.isoformat()}"
