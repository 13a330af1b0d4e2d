"""The list beside a certificate, and the proof that one artefact is on it: what is changed, cut, swapped or exchanged
is seen."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from services.audit import canonical, inclusion
from services.audit.artefact_list import LONGEST_LINE, Artefact, Leaf, ListInvalid, ListWriter, read_list, tally
from services.audit.inclusion import ProofInvalid, prove
from services.audit.keys import public_pem
from services.audit.predicate import DISPOSITIONS, KINDS, POSSIBLE, ArtefactKind, Disposition
from services.audit.verification import NOT_AT_HAND, Beside, Check, check
from tests.golden.certificate_v1 import KEY, SUBJECTS, digest
from tests.golden.certificate_v2 import LISTED, certificate, listed, predicate

PEM = public_pem(KEY.public_key())
LIST = listed()[0]
LINES = LIST.splitlines(keepends=True)
ARTEFACTS = predicate().artefacts


def checked(beside: Beside) -> Check:
    """The last check, that of what was brought."""
    return check(certificate(), PEM, beside=beside).checks[-1]


def check_of_list(data: bytes) -> Check:
    return checked(Beside(list=io.BytesIO(data)))


def check_of_proof(data: bytes) -> Check:
    return checked(Beside(inclusion=data))


def proof_of(name: str, data: bytes = LIST) -> bytes:
    return inclusion.to_bytes(prove(io.BytesIO(data), digest(name)))


def changed_line(change: Callable[[dict[str, str]], object], number: int = 0) -> bytes:
    leaf = json.loads(LINES[number])
    change(leaf)
    return json.dumps(leaf, sort_keys=True, separators=(",", ":")).encode() + b"\n"


# --- the list ---------------------------------------------------------------------------------------------------------


def test_the_list_of_a_certificate_has_its_root_and_its_counts() -> None:
    assert tally(io.BytesIO(LIST)) == ARTEFACTS
    verdict = check(certificate(), PEM, beside=Beside(list=io.BytesIO(LIST)))
    assert verdict.valid and verdict.complete
    assert verdict.checks[-1].name == "list" and "17 leaves with the certified root" in verdict.checks[-1].detail


def test_without_its_list_a_certificate_is_valid_and_not_completely_checked() -> None:
    verdict = check(certificate(), PEM)
    assert verdict.valid and not verdict.complete
    assert verdict.checks[-1] == Check("list", None, NOT_AT_HAND)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        LIST[:-1],
        b"".join(LINES[:-1]),
        b"".join([*LINES, LINES[0]]),
        b"".join([LINES[1], LINES[0], *LINES[2:]]),
        b"".join([LINES[-1], *LINES[1:-1], LINES[0]]),
        changed_line(lambda leaf: leaf.update(digest=digest("another"))) + b"".join(LINES[1:]),
        changed_line(lambda leaf: leaf.update(kind="checkpoint")) + b"".join(LINES[1:]),
        changed_line(lambda leaf: leaf.update(disposition="also-held-by-another")) + b"".join(LINES[1:]),
        changed_line(lambda leaf: leaf.update(disposition="scrubbed")) + b"".join(LINES[1:]),
        changed_line(lambda leaf: leaf.update(reason="We are sorry.")) + b"".join(LINES[1:]),
        changed_line(lambda leaf: leaf.update(salt="0" * 64)) + b"".join(LINES[1:]),
        changed_line(lambda leaf: leaf.update(note="x")) + b"".join(LINES[1:]),
        LIST.replace(b'"digest"', b' "digest"', 1),
        LIST.replace(b"\n", b"\r\n", 1),
        LIST.replace(b"\n", b"\n\n", 1),
        b"\xff" + LIST,
        b"[" * (LONGEST_LINE + 10) + b"\n",
    ],
)
def test_a_list_that_was_changed_cut_or_put_in_another_order_is_refused(data: bytes) -> None:
    found = check_of_list(data)
    assert (found.name, found.ok) == ("list", False)


def test_flipping_any_bit_of_a_list_is_seen() -> None:
    changed = bytearray(LIST)
    for position in range(len(changed)):
        changed[position] ^= 1 << position % 8
        with contextlib.suppress(ListInvalid):
            assert tally(io.BytesIO(bytes(changed))).root != ARTEFACTS.root, position
        changed[position] = LIST[position]


def test_a_certificate_that_counts_otherwise_than_its_list_is_refused_with_the_list() -> None:
    """An issuer may sign counts that its list does not have; the form of the claim alone cannot show it."""
    from services.audit.certificate import issue

    kinds = dict(ARTEFACTS.kinds)
    kinds["update"] = kinds["update"].model_copy(update={"dispositions": {"deleted": 2}})
    false = predicate().model_copy(update={"artefacts": ARTEFACTS.model_copy(update={"kinds": kinds})})
    verdict = check(issue(false, SUBJECTS, KEY), PEM, beside=Beside(list=io.BytesIO(LIST)))
    assert not verdict.valid and "counts its update artefacts otherwise" in verdict.checks[-1].detail


def test_nothing_that_cannot_have_become_of_a_kind_is_written() -> None:
    writer = ListWriter(io.BytesIO(), lambda: bytes(32))
    for kind in get_args(ArtefactKind):
        for disposition in set(get_args(Disposition)) - POSSIBLE[kind]:
            with pytest.raises(ListInvalid, match=f"cannot be {disposition}"):
                writer.write([Artefact(kind, digest("x"), disposition)])


def test_every_kind_and_disposition_has_its_sentence_and_its_use() -> None:
    assert set(KINDS) == set(POSSIBLE) == set(get_args(ArtefactKind))
    assert set(DISPOSITIONS) == set(get_args(Disposition)) == set().union(*POSSIBLE.values())


def test_the_golden_list_has_every_kind_and_every_disposition_but_revoked() -> None:
    leaves = list(read_list(io.BytesIO(LIST)))
    assert {leaf.kind for leaf in leaves} == set(KINDS) - {"ledger"}, "which came after the list was made"
    assert {leaf.disposition for leaf in leaves} == set(DISPOSITIONS) - {"revoked"}
    assert [Artefact(leaf.kind, leaf.digest, leaf.disposition, leaf.reason) for leaf in leaves] == list(LISTED)


def test_a_leaf_is_hashed_with_its_salt_and_everything_it_says() -> None:
    """Written out once more, for whoever builds a verifier of their own."""
    leaf = Leaf(kind="update", digest=digest("u"), disposition="deleted", salt="07" * 32)
    said = f'{{"digest":"{digest("u")}","disposition":"deleted","kind":"update","reason":""}}'
    assert leaf.hash == hashlib.sha256(b"\x00" + b"\x07" * 32 + said.encode()).digest()


# --- one artefact -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["update of b", "all with b", "cache of c"])
def test_one_artefact_is_proved_without_the_list(name: str) -> None:
    verdict = check(certificate(), PEM, beside=Beside(inclusion=proof_of(name)))
    assert verdict.valid and verdict.complete
    assert verdict.checks[-1].name == "inclusion" and digest(name) in verdict.checks[-1].detail
    assert len(proof_of(name)) < 1000


def test_everything_that_the_list_says_of_a_digest_is_proved() -> None:
    file = io.BytesIO()
    ListWriter(file, lambda: bytes(32)).write(
        [LISTED[0], LISTED[1], LISTED[0], Artefact("step", LISTED[0].digest, "deleted")]
    )
    file.seek(0)
    proof = prove(file, LISTED[0].digest)
    assert [(one.index, one.leaf.kind) for one in proof.inclusions] == [(0, "update"), (2, "update"), (3, "step")]
    file.seek(0)
    assert len(inclusion.read(inclusion.to_bytes(proof), tally(file))) == 3


def test_what_is_not_on_the_list_cannot_be_proved() -> None:
    with pytest.raises(ProofInvalid, match="is not on the list"):
        prove(io.BytesIO(LIST), digest("never heard of"))


def test_a_proof_for_another_root_is_refused() -> None:
    found = check_of_proof(proof_of("update of b", b"".join(LINES[:-1])))
    assert found.ok is False and "the proof is for a list of 16 leaves" in found.detail


@pytest.mark.parametrize(
    "change",
    [
        lambda p: p["inclusions"][0]["leaf"].update(digest=digest("another")),
        lambda p: p["inclusions"][0]["leaf"].update(kind="checkpoint"),
        lambda p: p["inclusions"][0]["leaf"].update(disposition="also-held-by-another"),
        lambda p: p["inclusions"][0]["leaf"].update(salt="0" * 64),
        lambda p: p["inclusions"][0].update(index=1),
        lambda p: p["inclusions"][0].update(index=17),
        lambda p: p["inclusions"][0].update(path=p["inclusions"][0]["path"][:-1]),
        lambda p: p["inclusions"][0].update(path=p["inclusions"][0]["path"][::-1]),
        lambda p: p["inclusions"][0].update(path=[*p["inclusions"][0]["path"], "0" * 64]),
        lambda p: p.update(num_leaves=16),
        lambda p: p.update(root=digest("another")),
        lambda p: p.update(inclusions=[]),
        lambda p: p.update(note="x"),
    ],
)
def test_a_changed_proof_is_refused(change: Callable[[dict[str, object]], object]) -> None:
    proof = json.loads(proof_of("update of b"))
    change(proof)
    data = json.dumps(proof, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    assert check_of_proof(data).ok is False


@pytest.mark.parametrize("data", [b"", b"{}", b"nothing", b"\xff", b"[]\n"])
def test_what_is_no_proof_is_refused_with_the_reason(data: bytes) -> None:
    found = check_of_proof(data)
    assert found.ok is False and found.detail.startswith("the proof ")


# --- many -------------------------------------------------------------------------------------------------------------


def test_a_long_list_is_written_checked_and_proved_in_little_memory(tmp_path: Path) -> None:
    """20 000 leaves are 4 MB of list; nothing but the lists' right edge may be held."""
    program = f"""
import hashlib, resource
from pathlib import Path
from services.audit.artefact_list import Artefact, ListWriter, tally
from services.audit.inclusion import prove, read, to_bytes
def artefacts():
    for number in range(20_000):
        yield Artefact("update", "sha256:" + hashlib.sha256(b"%d" % number).hexdigest(), "deleted")
path = Path({str(tmp_path / "long.list.jsonl")!r})
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with path.open("wb") as file:
    writer = ListWriter(file, lambda: bytes(32))
    writer.write(artefacts())
    said = writer.artefacts({{"update": 20_000}})
with path.open("rb") as file:
    assert tally(file) == said
    file.seek(0)
    proof = to_bytes(prove(file, "sha256:" + hashlib.sha256(b"777").hexdigest()))
assert len(read(proof, said)) == 1
print(path.stat().st_size, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    num_bytes, grown_kb = map(int, done.stdout.split())
    assert num_bytes > 4_000_000 and grown_kb < 2_000


@pytest.mark.parametrize("reason", ["", 'a "quoted" word', "two\nlines\tand \\", "ü \u2028 \x00 \x7f"])
def test_a_leaf_says_what_the_canonical_form_says(reason: str) -> None:
    leaf = Leaf(kind="update", digest=digest("x"), disposition="deleted", reason=reason, salt="00" * 32)
    assert leaf.said == canonical.encode(leaf.model_dump(exclude={"salt"}))
