"""Issuing and verifying: what is refused, and that the reason says what is wrong."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from services.audit import canonical
from services.audit.certificate import (
    CertificateInvalid,
    CertificateRefused,
    issue,
    pre_authentication_encoding,
    sign,
    statement,
    to_bytes,
    verify,
    verify_bytes,
)
from services.audit.keys import key_id
from services.audit.predicate import Count, ErasurePredicate, Method
from services.core import digests
from tests.golden.certificate_v1 import KEY, SUBJECTS, digest
from tests.golden.certificate_v2 import certificate, predicate
from tests.support.signatures import key_of_seed, signed_by

PUBLIC = KEY.public_key()
HOLDER = key_of_seed(b"h" * 32)
Change = Callable[[dict[str, Any]], object]
NOTHING = digests.of_bytes(b"")


def claim() -> dict[str, Any]:
    return statement(predicate(), SUBJECTS)


def of_kind(statement: dict[str, Any], kind: str) -> dict[str, Any]:
    found: dict[str, Any] = statement["predicate"]["artefacts"]["kinds"][kind]
    return found


def reason_of(envelope: dict[str, Any] | bytes, *keys: Any) -> str:
    certificate = envelope if isinstance(envelope, bytes) else to_bytes(envelope)
    with pytest.raises(CertificateInvalid) as caught:
        verify_bytes(certificate, keys or [PUBLIC])
    return caught.value.reason


def resigned_after(change: Change) -> dict[str, Any]:
    """A certificate with a changed statement and a good signature: what a dishonest issuer could make."""
    changed = claim()
    change(changed)
    return sign(changed, KEY)


def changed_file(change: Change) -> bytes:
    envelope = json.loads(certificate())
    change(envelope)
    return to_bytes(envelope)


def test_pre_authentication_encoding_is_that_of_the_dsse_specification() -> None:
    encoded = pre_authentication_encoding("http://example.com/HelloWorld", b"hello world")
    assert encoded == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"


def test_envelope_and_statement_have_the_fields_of_their_standards() -> None:
    envelope = json.loads(certificate())
    assert set(envelope) == {"payload", "payloadType", "signatures"}
    payload = json.loads(base64.b64decode(envelope["payload"]))
    assert set(payload) == {"_type", "subject", "predicateType", "predicate"}
    assert payload["subject"][0] == {
        "name": "digits/all",
        "digest": {"sha256": digest("all, round 12").removeprefix("sha256:")},
    }


def test_an_envelope_verifies_also_before_it_is_a_file() -> None:
    assert verify(sign(claim(), KEY), [PUBLIC]).predicate == predicate()


def test_statement_does_not_depend_on_the_order_of_the_subjects() -> None:
    assert issue(predicate(), SUBJECTS[::-1], KEY) == certificate()


# --- signatures -------------------------------------------------------------------------------------------------------


def test_a_certificate_may_carry_several_signatures() -> None:
    envelope = signed_by(claim(), KEY, HOLDER)
    assert verify(envelope, [PUBLIC, HOLDER.public_key()]).predicate == predicate()


def test_a_countersignature_by_an_unknown_key_is_not_taken_on_trust() -> None:
    envelope = signed_by(claim(), KEY, HOLDER)
    assert f"{key_id(HOLDER.public_key())} is unknown" in reason_of(envelope)


def test_swapped_signatures_are_rejected() -> None:
    envelope = signed_by(claim(), KEY, HOLDER)
    first, second = envelope["signatures"]
    first["sig"], second["sig"] = second["sig"], first["sig"]
    assert "does not match" in reason_of(envelope, PUBLIC, HOLDER.public_key())


def test_reordered_signatures_are_rejected() -> None:
    envelope = signed_by(claim(), KEY, HOLDER)
    envelope["signatures"].reverse()
    assert "not sorted" in reason_of(envelope, PUBLIC, HOLDER.public_key())


def test_a_repeated_signature_is_rejected() -> None:
    assert "each key once" in reason_of(changed_file(lambda e: e["signatures"].append(e["signatures"][0])))


def test_the_verifiers_key_must_be_the_one_that_signed() -> None:
    assert "is unknown" in reason_of(certificate(), HOLDER.public_key())


def test_a_certificate_signed_by_somebody_else_than_its_issuer_is_rejected() -> None:
    assert "not signed by its issuer" in reason_of(sign(claim(), HOLDER), HOLDER.public_key())


def test_a_signature_under_a_false_key_id_is_rejected() -> None:
    envelope = sign(claim(), HOLDER)
    envelope["signatures"][0]["keyid"] = key_id(PUBLIC)
    assert "does not match" in reason_of(envelope)


def test_signature_of_another_payload_is_rejected() -> None:
    other = predicate().model_copy(update={"limits": ("Another claim.",)})
    envelope = sign(statement(other, SUBJECTS), KEY)
    assert "does not match" in reason_of(changed_file(lambda e: e.update(payload=envelope["payload"])))


# --- form -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "does not end with a line feed"),
        (certificate()[:-1], "does not end with a line feed"),
        (b"{\n", "is not JSON"),
        (b"[]\n", "impossible form"),
        (b"\xff\n", "is not JSON"),
        (b"[" * 100_000 + b"\n", "is not JSON"),
        (certificate() + b"\n", "not in canonical form"),
        (b" " + certificate(), "not in canonical form"),
        (json.dumps(json.loads(certificate())).encode() + b"\n", "not in canonical form"),
        (certificate().replace(b'{"payload"', b'{"payload":"","payload"', 1), "not in canonical form"),
        (certificate().replace(b'"sig"', b'"s\\u0069g"'), "not in canonical form"),
        (changed_file(lambda e: e.update(note="x")), "unknown field 'note'"),
        (changed_file(lambda e: e.pop("signatures")), "lacks the field signatures"),
        (changed_file(lambda e: e.update(signatures=[])), "impossible signatures"),
        (changed_file(lambda e: e["signatures"][0].pop("keyid")), "lacks the field signatures.0.keyid"),
        (changed_file(lambda e: e.update(payloadType="text/plain")), "says payloadType 'text/plain'"),
        (changed_file(lambda e: e.update(payload=e["payload"] + "!")), "the payload is not base64"),
        (changed_file(lambda e: e.update(payload=e["payload"].rstrip("=") + "====")), "the payload is not base64"),
        (changed_file(lambda e: e.update(payload="YR==")), "one padded form"),
        (changed_file(lambda e: e.update(payload="é")), "the payload is not base64"),
        (changed_file(lambda e: e["signatures"][0].update(sig="AAAA\n")), "a signature is not base64"),
        (changed_file(lambda e: e["signatures"][0].update(sig="AAAA")), "does not match"),
    ],
)
def test_a_file_in_another_form_is_rejected(data: bytes, reason: str) -> None:
    assert reason in reason_of(data)


def test_a_huge_file_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    made = certificate()
    monkeypatch.setattr("services.audit.certificate.MAX_BYTES", 100)
    assert "at most 100 are read" in reason_of(made)


def signed_payload(payload: bytes) -> dict[str, Any]:
    """Any bytes under a good signature."""
    raw = KEY.sign(pre_authentication_encoding("application/vnd.in-toto+json", payload))
    return {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": "application/vnd.in-toto+json",
        "signatures": [{"keyid": key_id(PUBLIC), "sig": base64.b64encode(raw).decode()}],
    }


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "is not JSON"),
        (b"nothing", "is not JSON"),
        (json.dumps(claim(), sort_keys=True).encode(), "payload is not in canonical form"),
        (canonical.encode(claim()) + b"\n", "payload is not in canonical form"),
        (canonical.encode(claim()).replace(b"09:00:00Z", b"09:00:00+00:00"), "payload is not in canonical form"),
        (canonical.encode(claim()).replace(b'"weight":2.0', b'"weight":2'), "payload is not in canonical form"),
        (canonical.encode(claim()).replace(b'"learning_rate":0.5', b'"learning_rate":1e999'), "payload"),
        (canonical.encode(claim()).replace(b'"planned":1}', b'"planned":"1"}'), "impossible predicate.artefacts"),
        (canonical.encode(claim()).replace(b"09:00:00Z", b"09:00:00+02:00"), "times are given in UTC"),
    ],
)
def test_a_signed_payload_in_another_form_is_rejected(payload: bytes, reason: str) -> None:
    assert reason in reason_of(signed_payload(payload))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda s: s.update(_type="https://in-toto.io/Statement/v0.1"),
            "says _type 'https://in-toto.io/Statement/v0.1",
        ),
        (lambda s: s.update(predicateType="https://slsa.dev/provenance/v1"), "says predicateType"),
        (lambda s: s.pop("_type"), "lacks the field _type"),
        (lambda s: s["predicate"].pop("limits"), "lacks the field predicate.limits"),
        (lambda s: s["predicate"].update(limits=[]), "impossible predicate.limits"),
        (lambda s: s["predicate"].update(note="x"), "unknown field 'predicate.note'"),
        (lambda s: s["predicate"].pop("federation"), "lacks the field predicate.federation"),
        (lambda s: s["predicate"]["artefacts"].pop("root"), "lacks the field predicate.artefacts.root"),
        (lambda s: s["predicate"]["artefacts"]["kinds"].update(model={}), "predicate.artefacts.kinds.model"),
        (lambda s: of_kind(s, "step").update(dispositions={"lost": 1}), "predicate.artefacts.kinds.step.dispositions"),
        (lambda s: of_kind(s, "step").update(dispositions={"deleted": 0}), "kinds.step.dispositions.deleted"),
        (lambda s: s["predicate"]["incidents"][0].update(kind="Lost it"), "impossible predicate.incidents.0.kind"),
        (lambda s: s["predicate"]["guarantee"].update(kind="almost"), "predicate.guarantee.kind 'almost'"),
        (lambda s: s["predicate"]["request"].update(subjects=["hospital-b"]), "impossible predicate.request.subjects"),
        (lambda s: s["subject"][0]["digest"].update(sha256="ABC"), "impossible subject.0.digest.sha256"),
    ],
)
def test_a_signed_statement_of_another_schema_is_rejected(change: Change, reason: str) -> None:
    assert reason in reason_of(resigned_after(change))


# --- claims -----------------------------------------------------------------------------------------------------------

CONTRADICTIONS: list[tuple[Change, str]] = [
    (lambda s: s.update(subject=[]), "there are no subjects"),
    (lambda s: s.update(subject=s["subject"][1:]), "head of cohort 'all'"),
    (lambda s: s["subject"].append(s["subject"][-1]), "'digits/right' is named twice"),
    (lambda s: of_kind(s, "update").update(planned=3), "planned is not done: 2 of 3 of kind update"),
    (lambda s: of_kind(s, "update").update(planned=1), "planned is not done: 2 of 1 of kind update"),
    (lambda s: of_kind(s, "part").update(dispositions={}), "planned is not done: 0 of 1 of kind part"),
    (lambda s: of_kind(s, "part").update(planned=0, dispositions={}), "part is named, and there is none of it"),
    (lambda s: s["predicate"]["artefacts"]["kinds"].pop("part"), "has 17 leaves but the counts of its kinds make 16"),
    (lambda s: s["predicate"]["artefacts"].update(num_leaves=0), "is not that of a list of 0 leaves"),
    (lambda s: s["predicate"]["artefacts"].update(root=NOTHING), "is not that of a list of 17 leaves"),
    (lambda s: of_kind(s, "part").update(dispositions={"scrubbed": 1}), "a part cannot be scrubbed"),
    (lambda s: of_kind(s, "sealing-key").update(dispositions={"deleted": 1}), "a sealing-key cannot be deleted"),
    (lambda s: of_kind(s, "credential").update(dispositions={"deleted": 1}), "a credential cannot be deleted"),
    (lambda s: of_kind(s, "log-tail").update(dispositions={"deleted": 1}), "a log-tail cannot be deleted"),
    (lambda s: s["predicate"]["request"].update(scope="samples"), "a credential of it is listed"),
    (lambda s: s["predicate"]["num_cohorts"].update(done=2), "planned is not done: 2 of 3 cohorts"),
    (lambda s: s["predicate"]["cohorts"].pop(), "3 cohorts were planned but 2 are listed"),
    (lambda s: s["predicate"]["incidents"][0].update(at="2027-01-01T00:00:00Z"), "lies after completed_at"),
    (lambda s: s["predicate"]["guarantee"].update(meaning="Trust us."), "not said plainly"),
    (lambda s: s["predicate"]["guarantee"].update(kind="approximate"), "not said plainly"),
    (lambda s: s["predicate"]["cohorts"][1].update(outcome="unlearned"), "changed by an approximate method"),
    (lambda s: s["predicate"]["cohorts"][1].update(epoch_after=1), "was not fenced"),
    (lambda s: s["predicate"]["cohorts"][1].update(head=None), "serves no model"),
    (lambda s: s["predicate"]["cohorts"][1].update(outcome="retired"), "still serves one"),
    (lambda s: s["predicate"]["cohorts"][1].update(rollback_point=None), "names no rollback point"),
    (lambda s: s["predicate"]["cohorts"][0].update(parents=[]), "names 0 parents"),
    (lambda s: [p.update(weight=0.0) for p in s["predicate"]["cohorts"][0]["parents"]], "are all zero"),
    (lambda s: s["predicate"]["request"].update(completed_at="2026-03-01T09:00:01Z"), "first_clean_at is after"),
    (lambda s: s["predicate"]["request"].update(submitted_at="2026-03-01T09:00:01Z"), "submitted_at is after"),
    (lambda s: s["predicate"]["request"].update(legal_deadline="2026-02-01T09:00:00Z"), "legal deadline lies before"),
    (lambda s: s["predicate"]["request"]["subjects"].append(s["predicate"]["request"]["subjects"][0]), "named twice"),
    (lambda s: s["predicate"]["workers"].update(confirmed=s["predicate"]["workers"]["unconfirmed"]), "named twice"),
    (lambda s: s["predicate"]["still_shaped_by"].append(s["predicate"]["still_shaped_by"][0]), "tree-shape twice"),
    (lambda s: s["predicate"]["replayable"].update(extent="full"), "replayable is said to be full, with 23 of 24"),
    (lambda s: s["predicate"]["replayable"].update(num_replayable=25), "25 of 24 steps"),
    (lambda s: s["subject"].reverse(), "not sorted"),
]


@pytest.mark.parametrize(("change", "reason"), CONTRADICTIONS)
def test_a_signed_contradiction_is_rejected(change: Change, reason: str) -> None:
    assert reason in reason_of(resigned_after(change))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"num_cohorts": Count(planned=3, done=2)}, "planned is not done"),
        ({"artefacts": predicate().artefacts.model_copy(update={"num_leaves": 18})}, "has 18 leaves"),
        ({"issuer": predicate().issuer.model_copy(update={"key_id": digest("x")})}, "not the one that signs"),
        ({"method": Method.model_construct(name="m", parameters={"x": float("nan")})}, "JSON"),
    ],
)
def test_nothing_is_signed_while_the_claim_is_unfinished(changes: dict[str, Any], reason: str) -> None:
    unfinished: ErasurePredicate = predicate().model_copy(update=changes)
    with pytest.raises(CertificateRefused) as caught:
        issue(unfinished, SUBJECTS, KEY)
    assert any(reason in each for each in caught.value.reasons)


def test_a_refusal_names_every_open_end() -> None:
    kinds = {kind: one.model_copy(update={"dispositions": {}}) for kind, one in predicate().artefacts.kinds.items()}
    artefacts = predicate().artefacts.model_copy(update={"kinds": kinds, "num_leaves": 0, "root": NOTHING})
    with pytest.raises(CertificateRefused) as caught:
        issue(predicate().model_copy(update={"artefacts": artefacts}), SUBJECTS, KEY)
    assert len(caught.value.reasons) == len(kinds)


def test_a_model_without_a_digest_is_no_subject() -> None:
    with pytest.raises(CertificateRefused, match="has no sha256 digest"):
        issue(predicate(), [*SUBJECTS, ("digits/x", "latest")], KEY)


def test_a_late_erasure_is_certified_all_the_same() -> None:
    late = predicate().request.model_copy(update={"completed_at": datetime(2027, 1, 1, tzinfo=UTC)})
    assert issue(predicate().model_copy(update={"request": late}), SUBJECTS, KEY)
