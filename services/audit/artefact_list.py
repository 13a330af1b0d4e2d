"""The list of artefacts beside a certificate: JSON lines, one leaf of the Merkle tree each, in the order of the tree.

A leaf is hashed with 32 random bytes of its own: whoever is shown one leaf and its path learns nothing of the others,
not even by guessing. Lists are read and written line by line, however long they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, BinaryIO, Final

from pydantic import Field

from services.audit import canonical, merkle
from services.audit.canonical import Malformed
from services.audit.predicate import POSSIBLE, ArtefactKind, Artefacts, Disposition, KindCount
from services.wire.message import Digest, Message

MEDIA_TYPE: Final = "application/jsonl"
LONGEST_LINE: Final = 16 * 1024

Salt = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class ListInvalid(ValueError):
    """The file is no list of artefacts, or says something impossible."""


@dataclass(frozen=True, slots=True)
class Artefact:
    """Something derived from the erased data, and what became of it. `digest`: of its bytes; of a credential, of its
    hash; of what is scrubbed or lies at a worker, of the place where it stood, never of what could be guessed."""

    kind: ArtefactKind
    digest: str
    disposition: Disposition
    reason: str = ""


class Leaf(Message):
    kind: ArtefactKind
    digest: Digest
    disposition: Disposition
    reason: Annotated[str, Field(max_length=1000)] = ""
    salt: Salt

    @classmethod
    def of(cls, artefact: Artefact, salt: bytes) -> Leaf:
        return cls(
            kind=artefact.kind,
            digest=artefact.digest,
            disposition=artefact.disposition,
            reason=artefact.reason,
            salt=salt.hex(),
        )

    @property
    def said(self) -> bytes:
        """The canonical form of all but the salt, which comes last in a line. Written out here: there may be a million
        of them, and the words of three fields need no escapes."""
        reason = canonical.text(self.reason)
        said = f'{{"digest":"{self.digest}","disposition":"{self.disposition}","kind":"{self.kind}","reason":{reason}}}'
        return said.encode()

    @property
    def hash(self) -> bytes:
        return self.hash_of(self.said)

    def hash_of(self, said: bytes) -> bytes:
        return merkle.leaf_hash(bytes.fromhex(self.salt) + said)


class ListTally:
    """Counts leaves and builds their tree."""

    def __init__(self) -> None:
        self._tree = merkle.Tree()
        self._counts = Counter[tuple[ArtefactKind, Disposition]]()

    def add(self, leaf: Leaf) -> bytes:
        """Returns what the leaf says."""
        if leaf.disposition not in POSSIBLE[leaf.kind]:
            raise ListInvalid(f"{leaf.kind} {leaf.digest} cannot be {leaf.disposition}")
        self._counts[leaf.kind, leaf.disposition] += 1
        said = leaf.said
        self._tree.add(leaf.hash_of(said))
        return said

    def artefacts(self, planned: Mapping[ArtefactKind, int] | None = None) -> Artefacts:
        """`planned`: how many there should be; None: as many as there are."""
        kinds: dict[ArtefactKind, dict[Disposition, int]] = {}
        for (kind, disposition), count in sorted(self._counts.items()):
            kinds.setdefault(kind, {})[disposition] = count
        if planned is None:
            planned = {kind: sum(counts.values()) for kind, counts in kinds.items()}
        return Artefacts(
            root="sha256:" + self._tree.root().hex(),
            num_leaves=self._tree.num_leaves,
            kinds={
                kind: KindCount(planned=planned.get(kind, 0), dispositions=kinds.get(kind, {}))
                for kind in sorted(planned.keys() | kinds.keys())
            },
        )


class ListWriter:
    """Writes leaves to a file as they come. `new_salt` gives 32 random bytes."""

    def __init__(self, file: BinaryIO, new_salt: Callable[[], bytes]) -> None:
        self._file, self._new_salt, self._tally = file, new_salt, ListTally()

    def write(self, artefacts: Iterable[Artefact]) -> None:
        for artefact in artefacts:
            leaf = Leaf.of(artefact, self._new_salt())
            said = self._tally.add(leaf)
            self._file.write(b'%s,"salt":"%s"}\n' % (said[:-1], leaf.salt.encode()))

    def artefacts(self, planned: Mapping[ArtefactKind, int]) -> Artefacts:
        return self._tally.artefacts(planned)


def path_beside(certificate: Path) -> Path:
    """Where the list of this certificate is looked for: certificate.json has certificate.list.jsonl beside it."""
    return certificate.with_suffix(".list.jsonl")


def read_list(file: BinaryIO) -> Iterator[Leaf]:
    """Raises `ListInvalid` at the first line that is not in its one form."""
    number = 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE or not line.endswith(b"\n"):
            raise ListInvalid(f"line {number} is too long, or was cut off")
        try:
            yield canonical.decode(line[:-1], Leaf, f"leaf in line {number}")
        except Malformed as malformed:
            raise ListInvalid(str(malformed)) from None


def tally(file: BinaryIO) -> Artefacts:
    """What a certificate over this list says of it. Raises `ListInvalid`."""
    counted = ListTally()
    for leaf in read_list(file):
        counted.add(leaf)
    return counted.artefacts()
