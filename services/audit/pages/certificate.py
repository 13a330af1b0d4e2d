"""A certificate of erasure in the words of a page: the verdict, what is guaranteed and, at equal weight, what is not;
then the request, what was touched, what became of what was stored, and the audit with its power.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from services.audit.certificate import AnyStatement, CertificateInvalid, read_unverified
from services.audit.pages.content import Content, Facts, Grid, Listing, Paragraph, Section, seen
from services.audit.predicate import (
    DISPOSITIONS,
    KINDS,
    AuditFigure,
    CohortOutcome,
    Method,
    Outcome,
    Party,
    Statement,
)
from services.audit.verdict import SAYS_NOTHING, WITHIN_BOUNDS
from services.audit.verification import Beside, Check, check
from services.wire.v1.erasure import Ground

KeyFrom = Literal["reader", "issuer"]
"""Whose word it is that a key is the coordinator's: the reader brought it, or it came with the certificate."""
MOST_LISTED: Final = 200
OUTCOMES: Final[Mapping[Outcome, str]] = {
    "rolled-back": "went on from its newest model without the data",
    "re-initialised": "began again from other models without the data",
    "retired": "serves nothing any more",
    "retrained": "was trained again from the start",
    "unlearned": "was changed by an approximate method",
}
TRUST: Final[Mapping[KeyFrom | None, str]] = {
    "reader": "Verified: the signature is by the key that was given, {keys}. This is worth as much as the way on which "
    "that key was obtained.",
    "issuer": "Consistent, not proved: the signature fits the key that came with the certificate, {keys}. Anybody can "
    "make a certificate with a key of their own: compare this fingerprint with one that you got elsewhere.",
    None: "Not verified: no public key was given, so that nobody has looked at the signature. Anybody can write such a "
    "text.",
}
GROUNDS: Final[Mapping[Ground, str]] = {
    "not_necessary": "the data is not necessary any more (GDPR Art. 17(1)(a))",
    "withdrawal": "consent was withdrawn (GDPR Art. 17(1)(b))",
    "objection": "an objection (GDPR Art. 17(1)(c))",
    "unlawful": "the data was processed unlawfully (GDPR Art. 17(1)(d))",
    "legal_obligation": "a legal obligation (GDPR Art. 17(1)(e))",
    "child": "data of a child (GDPR Art. 17(1)(f))",
    "other": "another",
}
EYES: Final[Mapping[str | None, str]] = {
    "two persons": "Two persons: who filed the request and who approved it signed in as different people.",
    "two credentials": "Two credentials: the request was approved with another credential than it was filed with, and "
    "that one was not made with the filer's. Whether two people held them the coordinator cannot see.",
    None: "One pair of eyes: the same person may have filed the request and approved it.",
}
NOBODY_NAMED: Final = (
    "This certificate does not say who filed the request and who approved it. The coordinator's log of acts does: "
    "lethe acts list --about {request}."
)


class NotShown(ValueError):
    """The certificate does not verify: nothing that it says may be shown as if it did. `check`: the one that fails."""

    def __init__(self, check: str, reason: str) -> None:
        super().__init__(f"this certificate is not valid ({check}): {reason}")
        self.check = check


@dataclass(frozen=True, slots=True)
class Reading:
    """A certificate that is to be shown, and how far it was verified."""

    certificate: bytes
    statement: AnyStatement
    checks: tuple[Check, ...] = ()
    key_from: KeyFrom | None = None
    keys_pem: bytes = b""
    client: str | None = None
    """The client that the certificate is about, shown by its opening."""


def read(
    certificate: bytes, keys_pem: bytes | None, key_from: KeyFrom = "reader", beside: Beside | None = None
) -> Reading:
    """Raises `NotShown`. Without a key its form and claims are checked, and its signature is not."""
    if keys_pem is None:
        try:
            return Reading(certificate, read_unverified(certificate))
        except CertificateInvalid as invalid:
            raise NotShown(invalid.stage, invalid.reason) from invalid
    verdict = check(certificate, keys_pem, beside=beside)
    if failed := [one for one in verdict.checks if one.ok is False]:
        raise NotShown(failed[0].name, failed[0].detail)
    assert verdict.statement is not None
    client = beside.client if beside is not None else None
    return Reading(certificate, verdict.statement, verdict.checks, key_from, keys_pem, client)


def content_of(reading: Reading) -> Content:
    statement = reading.statement
    issuer = statement.predicate.issuer.key_id
    return seen(
        Content(
            title=f"Certificate of erasure {statement.predicate.request.id}",
            headline=_headline(statement),
            standing="good" if reading.key_from == "reader" else "unsure",
            trust=TRUST[reading.key_from].format(keys=issuer),
            pair=(_guaranteed(statement), _not_guaranteed(statement)),
            sections=(
                _request(statement, reading.client),
                Section("Who filed, who approved", tuple(_who(statement))),
                _touched(statement),
                _stored(statement),
                _audit(statement),
                _issued(statement),
                _checked(reading),
            ),
        )
    )


def _headline(statement: AnyStatement) -> str:
    predicate = statement.predicate
    num = len(predicate.request.subjects)
    clients = "one client" if num == 1 else f"{num} clients"
    what = f"Forgotten: {clients}" if predicate.request.scope == "client" else f"Forgotten: samples of {clients}"
    how = {"exact": "exactly", "approximate": "approximately"}[predicate.guarantee.kind]
    return f"{what}, {how}, {_punctuality(statement)}."


def _punctuality(statement: AnyStatement) -> str:
    request = statement.predicate.request
    on = f"on {request.completed_at:%Y-%m-%d}"
    if request.legal_deadline is None:
        return on
    when = "after" if request.completed_at > request.legal_deadline else "within"
    return f"{on}, {when} the legal deadline of {request.legal_deadline:%Y-%m-%d}"


def _guaranteed(statement: AnyStatement) -> Section:
    guarantee = statement.predicate.guarantee
    return Section("What is guaranteed", (Paragraph(f"{guarantee.kind.capitalize()}."), Paragraph(guarantee.meaning)))


def _not_guaranteed(statement: AnyStatement) -> Section:
    predicate = statement.predicate
    said = [*predicate.limits, *(f"{one.explanation} ({one.aspect})" for one in predicate.still_shaped_by)]
    if isinstance(statement, Statement):
        said += [f"{_instant(one.at)}: {one.explanation} ({one.kind})" for one in statement.predicate.incidents]
    return Section("What is not", (Listing(tuple(said)),))


def _request(statement: AnyStatement, client: str | None) -> Section:
    request = statement.predicate.request
    rows = [("Request", str(request.id))]
    if isinstance(statement, Statement):
        rows.append(("Federation", str(statement.predicate.federation)))
    rows += [
        ("About", "whole clients" if request.scope == "client" else "samples of clients that stay"),
        ("Law or contract", request.regulation),
        ("Submitted", _instant(request.submitted_at)),
        ("Fenced", f"{_instant(request.fenced_at)}: no model with the data was served or trained on any more"),
        ("First clean", f"{_instant(request.first_clean_at)}: every model line served a model without the data"),
        ("Completed", _instant(request.completed_at)),
        ("Legal deadline", "none recorded" if request.legal_deadline is None else _instant(request.legal_deadline)),
    ]
    whom = (
        f"The client {client}, as the opening of this certificate shows."
        if client is not None
        else (
            "Clients appear as commitments. With the opening of the certificate and a client's name anybody can check "
            "that it is this client: lethe verify --client NAME --opening FILE."
        )
    )
    return Section("The request", (Facts(tuple(rows)), Paragraph(whom), Listing(request.subjects)))


def _who(statement: AnyStatement) -> Iterator[Facts | Paragraph]:
    handling = statement.predicate.handling if isinstance(statement, Statement) else None
    if handling is None:
        yield Paragraph(NOBODY_NAMED.format(request=statement.predicate.request.id))
        return
    rows = [("Filed by", _party(handling.filed_by))]
    if handling.approved_by is not None and handling.approved_at is not None:
        rows.append(("Approved by", f"{_party(handling.approved_by)}, {_instant(handling.approved_at)}"))
    if handling.ground is not None:
        rows.append(("Ground", GROUNDS[handling.ground]))
    if handling.deadline_before is not None:
        rows.append(("Deadline extended", f"it was {_instant(handling.deadline_before)}"))
    yield Facts(tuple(rows))
    if handling.approved_by is not None:
        yield Paragraph(EYES[handling.eyes])
    elif handling.needed_approval:
        yield Paragraph(
            "It needed approval. The database was put back since; the log of tombstones had it carried out again, and "
            "who approved it is not known here."
        )
    else:
        yield Paragraph("Nobody had to approve it.")


def _party(party: Party | None) -> str:
    if party is None:
        return "not recorded"
    if party.role == "client":
        return f"the client itself (credential {party.credential})"
    named = " · ".join(filter(None, (party.person, party.label))) or "without a name"
    return f"{named} ({party.role}, credential {party.credential})"


def _touched(statement: AnyStatement) -> Section:
    predicate = statement.predicate
    rows = tuple(map(_cohort, predicate.cohorts))
    cohorts = Grid(("Cohort", "Run", "What became of it", "Round at the fence", "Round now", "Epoch"), rows)
    served = Grid(("Model served when this was signed", "Digest"), tuple(statement.subjects))
    workers = predicate.workers
    confirmed = f"{len(workers.confirmed)} of the erased clients' workers confirmed, {len(workers.unconfirmed)} did not"
    return Section(
        "What was touched",
        (
            cohorts if rows else Paragraph("No cohort held the data: nothing was trained with it."),
            served if statement.subjects else Paragraph("No model is served by the runs concerned."),
            Paragraph(f"{confirmed}. Only a client that stays and leaves out samples has anything to confirm."),
        ),
    )


def _cohort(cohort: CohortOutcome) -> tuple[str, ...]:
    return (
        cohort.name,
        str(cohort.run),
        f"{cohort.outcome}: {OUTCOMES[cohort.outcome]}",
        str(cohort.round_at_fence),
        str(cohort.round_reached),
        f"{cohort.epoch_before} → {cohort.epoch_after}",
    )


def _stored(statement: AnyStatement) -> Section:
    title = "What became of what was stored"
    if isinstance(statement, Statement):
        artefacts = statement.predicate.artefacts
        became = tuple(
            f"{num} {kind} ({KINDS[kind].rstrip('.')}): {disposition}. {DISPOSITIONS[disposition]}"
            for kind, found in sorted(artefacts.kinds.items())
            for disposition, num in sorted(found.dispositions.items())
        )
        said = f"{artefacts.num_leaves} artefacts, each with what became of it, are in the list beside the certificate."
        said += f" The root of the Merkle tree over it is {artefacts.root}."
        return Section(title, (Paragraph(said), Listing(became)))
    listed = statement.predicate.artefacts
    counted = Counter((one.kind, one.disposition or "nothing") for one in listed)
    counts = tuple((kind, str(num), became) for (kind, became), num in sorted(counted.items()))
    rows = tuple((one.kind, one.digest, one.disposition or "", one.reason) for one in listed[:MOST_LISTED])
    left = len(listed) - len(rows)
    more = (Paragraph(f"{left} more are in the certificate itself."),) if left > 0 else ()
    grids = Grid(("Kind", "Number", "What became of it"), counts), Grid(("Kind", "Digest", "Became", "Reason"), rows)
    return Section(title, (*grids, *more))


def _audit(statement: AnyStatement) -> Section:
    predicate = statement.predicate
    if not predicate.audit:
        said = "No audit was made, and none is needed for the guarantee: no model served descends from the erased data."
        if predicate.guarantee.kind == "approximate":
            said = "No audit was made: nothing that was measured shows how much of the data the models forgot."
        return Section("The audit", (Paragraph(said),))
    said = (
        "A figure shows something only if it could have failed: if the model before the erasure, which knew the data, "
        "was outside the bounds that the model after it keeps."
    )
    rows = tuple(
        (one.name, f"{one.value:.4g}", _figure(one.reference), one.reference_is, _power(one)) for one in predicate.audit
    )
    grid = Grid(("Figure", "Value", "Beside it", "What that is, and the verdict", "Could it have failed?"), rows)
    return Section("The audit", (Paragraph(said), grid))


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _power(figure: AuditFigure) -> str:
    """The audit's power, read from the words of the verdict in which it is certified."""
    if SAYS_NOTHING in figure.reference_is:
        return "no: it says nothing"
    if figure.reference is not None and WITHIN_BOUNDS in figure.reference_is:
        return "yes"
    return "not recorded"


def _issued(statement: AnyStatement) -> Section:
    predicate, method = statement.predicate, statement.predicate.method
    package = method.package if isinstance(method, Method) else None
    named = method.name if package is None else f"{method.name} of {package.name} {package.version}"
    replayable = predicate.replayable
    return Section(
        "How it was done, and who signed",
        (
            Facts(
                (
                    ("Method", named),
                    ("Parameters", json.dumps(method.parameters, sort_keys=True, ensure_ascii=False)),
                    (
                        "Can be computed again",
                        f"{replayable.num_replayable} of {replayable.num_steps} steps behind the models that are "
                        f"served ({replayable.extent}): lethe verify --replay does",
                    ),
                    ("Issued by", f"coordinator {predicate.issuer.coordinator_version}"),
                    ("Key", predicate.issuer.key_id),
                    ("Form", statement.predicate_type),
                )
            ),
        ),
    )


def _checked(reading: Reading) -> Section:
    said = "lethe verify certificate.json --key KEY checks all of this again without the coordinator; with --replay it "
    said += "also computes the models again."
    return Section(
        "What was checked when this was written",
        (*((Listing(tuple(_said(reading.checks))),) if reading.checks else ()), Paragraph(said)),
    )


def _said(checks: tuple[Check, ...]) -> Iterator[str]:
    words = {True: "holds", False: "fails", None: "not checked"}
    for one in checks:
        yield f"{one.name}: {words[one.ok]}: {one.detail}"


def _instant(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
