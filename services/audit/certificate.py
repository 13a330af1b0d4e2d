"""The certificate of an erasure: an in-toto Statement v1 in a DSSE v1 envelope, signed with Ed25519.

A certificate is a file in one form only (`to_bytes`): changing any byte of it makes `verify_bytes` fail. That is why
key ids must be those of the keys that match, signatures are sorted by key id, and each of them must be by a key that
the verifier was given. Ed25519 signs deterministically: the same claim under the same key is the same file.

Two versions of the claim are read, by what the statement says of its predicate's type; only the newer one is issued.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BaseModel, Field, ValidationError

from services.audit import canonical
from services.audit.canonical import Malformed
from services.audit.keys import key_id
from services.audit.objections import objections
from services.audit.predicate import PREDICATE_TYPE, ErasurePredicate, Statement
from services.audit.v1 import predicate as first
from services.audit.v1.objections import objections as objections_to_first
from services.core.digests import is_digest
from services.wire.message import Digest, Message

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
MAX_BYTES: Final = 64 * 2**20

AnyStatement = Statement | first.Statement
"""What a verified certificate says, in either version."""
Stage = Literal["form", "signatures", "statement", "claims"]
"""The stages, in the order in which a certificate is checked."""


class CertificateInvalid(ValueError):
    """Not to be trusted. `stage` is the check that failed, `reason` why."""

    def __init__(self, stage: Stage, reason: str) -> None:
        super().__init__(reason)
        self.stage = stage
        self.reason = reason


class CertificateRefused(ValueError):
    """Nothing was signed, because the claim is unfinished or contradicts itself."""

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = tuple(reasons)


class Signature(Message):
    keyid: Digest
    sig: str


class Envelope(Message):
    payload: str
    payload_type: Literal["application/vnd.in-toto+json"] = Field(alias="payloadType")
    signatures: Annotated[tuple[Signature, ...], Field(min_length=1)]


class _Typed(BaseModel):
    """The one field of a statement that says how to read the rest."""

    predicate_type: str = Field(alias="predicateType")


def issue(predicate: ErasurePredicate, subjects: Sequence[tuple[str, str]], key: Ed25519PrivateKey) -> bytes:
    """The certificate as a file. Raises `CertificateRefused` while anything planned is not done."""
    reasons = objections(predicate, subjects)
    if predicate.issuer.key_id != key_id(key.public_key()):
        reasons.append(f"the issuer names the key {predicate.issuer.key_id}, which is not the one that signs")
    if reasons:
        raise CertificateRefused(reasons)
    try:
        certificate = to_bytes(sign(statement(predicate, subjects), key))
        verify_bytes(certificate, [key.public_key()])  # what cannot be verified must never leave the house
    except ValueError as error:  # figures that JSON cannot hold, a subject without a digest
        raise CertificateRefused([str(error)]) from error
    return certificate


def statement(predicate: ErasurePredicate, subjects: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """`subjects`: (name, `sha256:` digest) of every model now served."""
    for name, digest in subjects:
        if not is_digest(digest):
            raise ValueError(f"the subject {name!a} has no sha256 digest")
    return {
        "_type": STATEMENT_TYPE,
        "subject": [
            {"name": name, "digest": {"sha256": digest.removeprefix("sha256:")}} for name, digest in sorted(subjects)
        ],
        "predicateType": PREDICATE_TYPE,
        "predicate": predicate.model_dump(mode="json", by_alias=True),
    }


def sign(statement: dict[str, Any], key: Ed25519PrivateKey) -> dict[str, Any]:
    """A DSSE envelope with one signature."""
    payload = canonical.encode(statement)
    return {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": PAYLOAD_TYPE,
        "signatures": [_signature(payload, key)],
    }


def to_bytes(envelope: dict[str, Any]) -> bytes:
    """The one form of an envelope as a file: canonical JSON and a line feed."""
    return canonical.encode(envelope) + b"\n"


def verify(envelope: dict[str, Any], public_keys: Iterable[Ed25519PublicKey]) -> AnyStatement:
    try:
        certificate = to_bytes(envelope)
    except (TypeError, ValueError) as error:
        raise CertificateInvalid("form", f"the envelope is not JSON: {error}") from error
    return verify_bytes(certificate, public_keys)


def verify_bytes(certificate: bytes, public_keys: Iterable[Ed25519PublicKey]) -> AnyStatement:
    """The statement, read from exactly the bytes that were signed: use it, and do not parse the file again.

    `public_keys` are those the verifier trusts, the issuer's among them. Raises `CertificateInvalid`.
    """
    envelope, payload = _open(certificate)
    _check_signatures(envelope, payload, public_keys)
    found, reasons = _read(payload)
    if found.predicate.issuer.key_id not in {signature.keyid for signature in envelope.signatures}:
        raise CertificateInvalid("claims", f"it is not signed by its issuer's key {found.predicate.issuer.key_id}")
    if found.subjects != sorted(found.subjects):
        raise CertificateInvalid("claims", "the subjects are not sorted by name")
    if reasons:
        raise CertificateInvalid("claims", "; ".join(reasons))
    return found


def artefact_root(certificate: bytes) -> str | None:
    """The root that finds the list beside one's own certificate; None: the first version had no list."""
    found, _ = _read(_open(certificate)[1])
    return found.predicate.artefacts.root if isinstance(found, Statement) else None


def pre_authentication_encoding(payload_type: str, payload: bytes) -> bytes:
    """DSSE v1 PAE: what is signed, so that no payload can be taken for one of another type."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def _signature(payload: bytes, key: Ed25519PrivateKey) -> dict[str, str]:
    raw = key.sign(pre_authentication_encoding(PAYLOAD_TYPE, payload))
    return {"keyid": key_id(key.public_key()), "sig": base64.b64encode(raw).decode()}


def _open(certificate: bytes) -> tuple[Envelope, bytes]:
    if len(certificate) > MAX_BYTES:
        raise CertificateInvalid("form", f"the file has {len(certificate)} bytes; at most {MAX_BYTES} are read")
    if not certificate.endswith(b"\n"):
        raise CertificateInvalid("form", "the file does not end with a line feed: it was cut off or changed")
    try:
        envelope = canonical.decode(certificate[:-1], Envelope, "envelope")
        return envelope, _decode_base64(envelope.payload, "the payload")
    except Malformed as malformed:
        raise CertificateInvalid("form", str(malformed)) from None


def _read(payload: bytes) -> tuple[AnyStatement, list[str]]:
    """The statement, and what is to be said against it."""
    try:
        if _predicate_type(payload) == first.PREDICATE_TYPE:
            earlier = canonical.decode(payload, first.Statement, "payload")
            return earlier, objections_to_first(earlier.predicate, earlier.subjects)
        found = canonical.decode(payload, Statement, "payload")
        return found, objections(found.predicate, found.subjects)
    except Malformed as malformed:
        raise CertificateInvalid("statement", str(malformed)) from None


def _predicate_type(payload: bytes) -> str | None:
    try:
        return _Typed.model_validate_json(payload).predicate_type
    except ValidationError:
        return None  # whoever reads the whole says what is wrong with it


def _check_signatures(envelope: Envelope, payload: bytes, public_keys: Iterable[Ed25519PublicKey]) -> None:
    from cryptography.exceptions import InvalidSignature

    known = {key_id(public): public for public in public_keys}
    ids = [signature.keyid for signature in envelope.signatures]
    if ids != sorted(set(ids)):
        raise CertificateInvalid("form", "the signatures are not sorted by key id, each key once")
    message = pre_authentication_encoding(envelope.payload_type, payload)
    for signature in envelope.signatures:
        if signature.keyid not in known:
            raise CertificateInvalid(
                "signatures", f"the key {signature.keyid} is unknown: its public key was not given"
            )
        try:
            raw = _decode_base64(signature.sig, "a signature")
            known[signature.keyid].verify(raw, message)
        except Malformed as malformed:
            raise CertificateInvalid("form", str(malformed)) from None
        except InvalidSignature:
            raise CertificateInvalid(
                "signatures", f"the signature by {signature.keyid} does not match: the content or the signature changed"
            ) from None


def _decode_base64(text: str, what: str) -> bytes:
    """Standard alphabet, padded, no stray bits: one text per value."""
    try:
        data = base64.b64decode(text.encode("ascii"), validate=True)
    except (UnicodeEncodeError, binascii.Error):
        raise Malformed(f"{what} is not base64") from None
    if base64.b64encode(data).decode() != text:
        raise Malformed(f"{what} is not base64 in its one padded form")
    return data
