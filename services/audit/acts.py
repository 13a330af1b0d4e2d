"""The log of acts as evidence: a chain of digests over its entries, and a signed head: where it begins, where it ends.

An export is a file of JSON lines, one act each, with the head as its last line. Whoever has the issuer's public key
finds every entry that was changed, removed, added or moved. What entries say of somebody is committed to with salts of
its own: without the salt, which is destroyed with its owner, nobody can guess it, and the chain still verifies.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, BinaryIO, Final, Literal
from uuid import UUID

from pydantic import Field

from services.audit import canonical
from services.audit.canonical import Malformed
from services.audit.certificate import Signature, pre_authentication_encoding
from services.audit.keys import KeyUnreadable, key_id, read_public_keys
from services.audit.verification import Check
from services.core import digests
from services.wire.message import Message
from services.wire.v1.acts import ActEntry, ActsHead, ActWords, RecordedAct

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

HEAD_TYPE: Final = "application/vnd.lethe.acts-head.v1+json"
MEDIA_TYPE: Final = "application/jsonl"
MOST_LINE_BYTES: Final = 4 << 20


class ActsInvalid(ValueError):
    """The export is not what was signed; says at which entry."""


class HeadEnvelope(Message):
    payload: str
    payload_type: Literal["application/vnd.lethe.acts-head.v1+json"] = Field(alias="payloadType")
    signatures: Annotated[tuple[Signature, ...], Field(min_length=1, max_length=1)]


def commitment(words: ActWords) -> str:
    said = canonical.encode(dict(words.content))
    return "hmac-sha256:" + hmac.new(bytes.fromhex(words.salt), said, hashlib.sha256).hexdigest()


def beginning(federation_id: UUID) -> str:
    """What the first entry of a federation follows."""
    return digests.of_bytes(b"lethe acts v1 " + federation_id.bytes)


def digest_of(entry: ActEntry, previous: str) -> str:
    return digests.of_bytes(canonical.encode({"entry": entry.model_dump(mode="json"), "previous": previous}))


def sign_head(head: ActsHead, key: Ed25519PrivateKey) -> bytes:
    """One line, with its line feed."""
    payload = canonical.encode_model(head)
    signature = base64.b64encode(key.sign(pre_authentication_encoding(HEAD_TYPE, payload))).decode()
    envelope = {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": HEAD_TYPE,
        "signatures": [{"keyid": key_id(key.public_key()), "sig": signature}],
    }
    return canonical.encode(envelope) + b"\n"


def read_head(line: bytes) -> ActsHead:
    """The head in a line of one's own making: its signature is not looked at."""
    return _opened(line)[1]


def verify_head(line: bytes, keys: Mapping[str, Ed25519PublicKey]) -> ActsHead:
    """`keys`: by their ids. Raises `ActsInvalid`."""
    from cryptography.exceptions import InvalidSignature

    envelope, head, payload = _opened(line)
    (signature,) = envelope.signatures
    if signature.keyid not in keys:
        raise ActsInvalid(f"the head is signed by {signature.keyid}, whose public key was not given")
    try:
        message = pre_authentication_encoding(HEAD_TYPE, payload)
        keys[signature.keyid].verify(base64.b64decode(signature.sig, validate=True), message)
    except (InvalidSignature, ValueError):
        raise ActsInvalid(f"the signature of the head by {signature.keyid} does not fit: it was changed") from None
    return head


def _opened(line: bytes) -> tuple[HeadEnvelope, ActsHead, bytes]:
    try:
        envelope = canonical.decode(line.removesuffix(b"\n"), HeadEnvelope, "head")
        payload = base64.b64decode(envelope.payload, validate=True)
        return envelope, canonical.decode(payload, ActsHead, "head"), payload
    except (Malformed, ValueError) as error:
        raise ActsInvalid(f"the last line is no signed head: {error}") from None


def to_line(act: RecordedAct) -> bytes:
    return canonical.encode_model(act) + b"\n"


def is_export(data: bytes) -> bool:
    """Whether a file is an export, by how it begins: with an act or, where the log is empty, with the head."""
    return data.startswith(b'{"entry":') or (data.startswith(b'{"payload":') and HEAD_TYPE.encode() in data[:5000])


@dataclass(frozen=True, slots=True)
class Found:
    head: ActsHead
    num_entries: int
    num_lost: int
    """Acts lost in gaps that the log itself tells of."""
    num_opened: int
    num_closed: int
    """What was said of somebody and cannot be read any more."""


def read_export(file: BinaryIO, keys: Mapping[str, Ed25519PublicKey]) -> Found:
    """Check every line. Raises `ActsInvalid`."""
    lines = _lines(file)
    last = next(lines, None)
    if last is None:
        raise ActsInvalid("the file is empty")
    acts: list[RecordedAct] = []
    for line in lines:  # the head is the last
        acts.append(_act(last, len(acts) + 1))
        last = line
    head = verify_head(last, keys)
    num_lost = follow([act.entry for act in acts], head)
    words = [one for act in acts for one in act.opened]
    num_closed = words.count(None)
    return Found(head, len(acts), num_lost, len(words) - num_closed, num_closed)


def follow(entries: Iterable[ActEntry], head: ActsHead) -> int:
    """The chain from where the head says that it begins to where it ends; returns how many entries are lost in gaps.
    Raises `ActsInvalid`."""
    if head.kept_from == 1 and head.before != beginning(head.federation):
        raise ActsInvalid("the head says that nothing was pruned, and begins elsewhere than the log does")
    seq, digest, num_lost = head.kept_from - 1, head.before, 0
    for entry in entries:
        if entry.federation != head.federation:
            raise ActsInvalid(f"entry {entry.seq} is of another federation than the head")
        if (gap := entry.gap) is not None:
            if (gap.first, gap.before) != (seq + 1, digest) or gap.last < seq:
                raise ActsInvalid(f"entry {entry.seq} tells of a gap elsewhere: what is before it was changed")
            num_lost += gap.last - seq
            seq, digest = gap.last, gap.after
        if entry.seq != seq + 1:
            raise ActsInvalid(f"after entry {seq} comes entry {entry.seq}: entries were removed, added or moved")
        seq, digest = entry.seq, digest_of(entry, digest)
    if seq != head.seq:
        why = "entries were removed or added"
        raise ActsInvalid(f"the last entry is {seq}, the signed head is of entry {head.seq}: {why}")
    if digest != head.digest:
        raise ActsInvalid("the entries are not those that were signed: at least one of them was changed")
    return num_lost


def _lines(file: BinaryIO) -> Iterator[bytes]:
    while line := file.readline(MOST_LINE_BYTES):
        if not line.endswith(b"\n"):
            raise ActsInvalid("a line is too long or cut off: the file is not whole")
        yield line


def _act(line: bytes, number: int) -> RecordedAct:
    try:
        act = canonical.decode(line.removesuffix(b"\n"), RecordedAct, f"line {number}")
    except Malformed as malformed:
        raise ActsInvalid(str(malformed)) from None
    if len(act.opened) != len(act.entry.parts):
        raise ActsInvalid(f"line {number} opens {len(act.opened)} of {len(act.entry.parts)} parts")
    for part, words in zip(act.entry.parts, act.opened, strict=True):
        if words is not None and commitment(words) != part.commitment:
            raise ActsInvalid(
                f"what entry {act.entry.seq} says ({part.says}) was changed: its commitment is to other words"
            )
    return act


def check(file: BinaryIO, public_key_pem: bytes) -> tuple[Check, ...]:
    """Like the checks of a certificate, for people."""
    try:
        keys = {key_id(key): key for key in read_public_keys(public_key_pem)}
    except KeyUnreadable as error:
        return (Check("key", False, str(error)),)
    key_check = Check("key", True, ", ".join(keys))
    try:
        found = read_export(file, keys)
    except ActsInvalid as invalid:
        return (key_check, Check("acts", False, str(invalid)))
    return (key_check, *_said(found))


def _said(found: Found) -> Sequence[Check]:
    head = found.head
    kept = f"entries {head.kept_from} to {head.seq} of federation {head.federation}, none changed, removed or moved"
    pruned = f"; those before {head.kept_from} were pruned" if head.kept_from > 1 else ""
    lost = f"; {found.num_lost} were lost with a database, and the log says so" if found.num_lost else ""
    closed = f", {found.num_closed} can be read by nobody any more" if found.num_closed else ""
    return (
        Check("acts", True, f"{kept}{pruned}{lost}"),
        Check("head", True, f"signed on {head.at.isoformat()}: what was done later is not in it"),
        Check("names", True, f"{found.num_opened} names and texts are those that were recorded{closed}"),
    )
