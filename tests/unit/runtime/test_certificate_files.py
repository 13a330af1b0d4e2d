"""Lists and openings on the disk: all or nothing, private, and an opening that is there stays what it is."""

from __future__ import annotations

import os
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest

from coordinator.runtime.certificate_files import CertificateFiles
from services.audit import opening as openings
from services.audit.artefact_list import Artefact, ListInvalid, tally
from services.audit.opening import Opening
from services.core import digests

REQUEST, FEDERATION = UUID(int=1), UUID(int=2)
NOW = datetime.now(UTC)
ARTEFACT = Artefact("update", digests.of_bytes(b"u"), "deleted")


def opening(salt: str, *clients: str, federation: UUID = FEDERATION) -> Opening:
    return Opening(request=REQUEST, federation=federation, clients=clients or ("b",), salt=salt * 64)


def test_a_list_appears_whole_and_private_or_not_at_all(tmp_path: Path) -> None:
    files = CertificateFiles(tmp_path)
    files.prepare(NOW)
    draft = files.new_list()
    draft.write([ARTEFACT, ARTEFACT])
    said = draft.artefacts({"update": 2})
    path = files.list_path(REQUEST, said.root)
    assert not path.exists()
    draft.publish(path)
    draft.close()
    with path.open("rb") as file:
        assert tally(file) == said
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]
    files.prepare(NOW)
    abandoned = files.new_list()
    with pytest.raises(ListInvalid):
        abandoned.write([ARTEFACT, Artefact("figure", ARTEFACT.digest, "deleted")])
    abandoned.close()
    assert list(path.parent.iterdir()) == [path]


def test_what_a_killed_process_left_of_a_list_goes_after_a_day(tmp_path: Path) -> None:
    files = CertificateFiles(tmp_path)
    files.prepare(NOW)
    files.new_list().close()
    left = tmp_path / "certificates" / ".new-left"
    left.touch()
    files.prepare(NOW + timedelta(hours=23))
    files.new_list().close()
    assert left.exists(), "somebody may be writing it"
    long_ago = (NOW - timedelta(days=2)).timestamp()
    os.utime(left, (long_ago, long_ago))
    files.prepare(NOW)
    files.new_list().close()
    assert not left.exists()


def test_two_lists_of_one_request_have_salts_of_their_own(tmp_path: Path) -> None:
    files, roots = CertificateFiles(tmp_path), set[str]()
    for _ in range(2):
        files.prepare(NOW)
        draft = files.new_list()
        draft.write([ARTEFACT])
        roots.add(draft.artefacts({"update": 1}).root)
        draft.close()
    assert len(roots) == 2


def test_an_opening_keeps_its_salt_when_the_request_is_certified_again(tmp_path: Path) -> None:
    """A database that is restored from before the request gives it another salt; both certificates must open."""
    files = CertificateFiles(tmp_path)
    assert files.keep_opening(opening("1")) == opening("1")
    assert files.keep_opening(opening("2")) == opening("1")
    assert files.keep_opening(opening("2", "c")) == opening("1", "b", "c")
    path = files.opening_path(REQUEST)
    assert openings.read(path.read_bytes()) == opening("1", "b", "c")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("left", [b"", b"{", openings.to_bytes(opening("1", federation=UUID(int=3)))])
def test_an_opening_that_opens_nothing_is_written_anew(tmp_path: Path, left: bytes) -> None:
    files = CertificateFiles(tmp_path)
    files.opening_path(REQUEST).parent.mkdir()
    files.opening_path(REQUEST).write_bytes(left)
    assert files.keep_opening(opening("2")) == opening("2")
    assert files.opening_path(REQUEST).read_bytes() == openings.to_bytes(opening("2"))
