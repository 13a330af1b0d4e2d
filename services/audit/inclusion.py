"""Proof that an artefact is on the list of a certificate, for whoever has the certificate and not the list."""

from __future__ import annotations

from typing import Annotated, BinaryIO, Final

from pydantic import Field

from services.audit import canonical, merkle
from services.audit.artefact_list import Leaf, Salt, read_list
from services.audit.canonical import Malformed
from services.audit.predicate import POSSIBLE, Artefacts
from services.wire.message import Digest, Message

MOST_PROVED: Final = 1000
"""Leaves of one digest: the same bytes may have been an update in many rounds."""


class ProofInvalid(ValueError):
    """The proof does not lead to the certificate's root, or is none."""


class Inclusion(Message):
    leaf: Leaf
    index: Annotated[int, Field(ge=0)]
    path: Annotated[tuple[Salt, ...], Field(max_length=64)]
    """Hashes in hex of its siblings, from the leaf upwards."""


class Proof(Message):
    """Everything that the list says of one digest."""

    root: Digest
    num_leaves: Annotated[int, Field(ge=1)]
    inclusions: Annotated[tuple[Inclusion, ...], Field(min_length=1, max_length=MOST_PROVED)]


def prove(file: BinaryIO, digest: str) -> Proof:
    """Reads the list twice. ProofInvalid: the digest is not on it."""
    found = [(index, leaf) for index, leaf in enumerate(read_list(file)) if leaf.digest == digest]
    if not found:
        raise ProofInvalid(f"{digest} is not on the list")
    if len(found) > MOST_PROVED:
        raise ProofInvalid(f"{digest} is on the list {len(found)} times; at most {MOST_PROVED} are proved at once")
    file.seek(0)
    tree = merkle.Tree([index for index, _ in found])
    for leaf in read_list(file):
        tree.add(leaf.hash)
    return Proof(
        root="sha256:" + tree.root().hex(),
        num_leaves=tree.num_leaves,
        inclusions=tuple(
            Inclusion(leaf=leaf, index=index, path=tuple(sibling.hex() for sibling in tree.paths[index]))
            for index, leaf in found
        ),
    )


def to_bytes(proof: Proof) -> bytes:
    return canonical.encode_model(proof) + b"\n"


def read(data: bytes, artefacts: Artefacts) -> tuple[Leaf, ...]:
    """What is proved to be on the list of this certificate. Raises `ProofInvalid`."""
    try:
        proof = canonical.decode(data.removesuffix(b"\n"), Proof, "proof")
    except Malformed as malformed:
        raise ProofInvalid(str(malformed)) from None
    if proof.root != artefacts.root or proof.num_leaves != artefacts.num_leaves:
        raise ProofInvalid(
            f"the proof is for a list of {proof.num_leaves} leaves with the root {proof.root}; "
            f"the certificate's has {artefacts.num_leaves} and {artefacts.root}"
        )
    for one in proof.inclusions:
        try:
            root = merkle.root_by_path(
                one.leaf.hash, one.index, proof.num_leaves, [bytes.fromhex(sibling) for sibling in one.path]
            )
        except ValueError as error:
            raise ProofInvalid(f"leaf {one.index}: {error}") from None
        if f"sha256:{root.hex()}" != artefacts.root:
            raise ProofInvalid(f"leaf {one.index} and its path do not lead to the certificate's root {artefacts.root}")
        if one.leaf.disposition not in POSSIBLE[one.leaf.kind]:
            raise ProofInvalid(f"{one.leaf.kind} {one.leaf.digest} cannot be {one.leaf.disposition}")
    return tuple(one.leaf for one in proof.inclusions)
