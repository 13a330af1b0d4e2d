"""`lethe acts`: what is printed, what an export is like, and what `lethe verify` says of it."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lethe.commands.acts import defused
from services.audit.acts import commitment, sign_head
from services.wire.v1.acts import ActAbout, ActPart, ActWords, RecordedAct
from tests.golden.certificate_v1 import KEY, PUBLIC_KEY
from tests.unit.audit import test_acts as log
from tests.unit.cli.conftest import Server

FEDERATION = str(log.FEDERATION)
ACTS = f"/v1/federations/{FEDERATION}/acts"
WHO = {"name": "Dr. Weber", "credential": "c1", "from": "10.0.0.7"}


def said(seq: int, who: dict[str, str], words: str | None = None, *, is_erased: bool = False) -> RecordedAct:
    texts = [ActWords(salt=f"{seq:064x}", content=who)]
    if words is not None:
        texts.append(ActWords(salt=f"{seq + 100:064x}", content={"text": words}))
    kinds = ("who", "words")
    parts = [ActPart(says=says, commitment=commitment(one)) for says, one in zip(kinds, texts, strict=False)]  # type: ignore[arg-type]
    about = ActAbout(kind="request", id=log.FEDERATION)
    entry = log.act(seq).entry.model_copy(update={"parts": parts, "about": about, "act": "erasure.denied"})
    return RecordedAct(entry=entry, opened=[None, *texts[1:]] if is_erased else list(texts))


LISTED = [said(1, WHO), said(2, {**WHO, "name": "=HYPERLINK(1)"}, "+cmd|' /C calc'!A0"), said(3, WHO, is_erased=True)]


def serve(server: Server, acts: Sequence[RecordedAct]) -> None:
    items = [act.model_dump(mode="json") for act in acts]
    federation = {"id": FEDERATION, "name": "cardiology", "created_at": "2026-01-01T00:00:00Z"}
    server.answers["GET /v1/federations"] = [(200, {"items": [federation], "next_cursor": None})]
    newest = {"items": items[::-1], "next_cursor": None}
    server.answers[f"GET {ACTS}?newest_first=true&limit=50"] = [(200, newest)]
    server.answers[f"GET {ACTS}?limit=200"] = [(200, {"items": items, "next_cursor": None})]
    server.answers[f"GET {ACTS}/head"] = [(200, sign_head(log.head(list(acts)), KEY).decode())]


def test_acts_are_listed_with_the_newest_last_and_say_what_is_erased(server: Server, lethe: Any) -> None:
    serve(server, LISTED)
    code, out, _ = lethe("acts", "list")
    rows = out.splitlines()[2:]
    assert code == 0 and [row.split()[0] for row in rows] == ["1", "2", "3"]
    assert "Dr. Weber" in rows[0] and "10.0.0.7" in rows[0] and "(erased)" in rows[2]
    printed = [json.loads(line) for line in lethe("acts", "list", "--json")[1].splitlines()]
    assert printed == [act.model_dump(mode="json") for act in LISTED]


def test_an_export_verifies_and_is_for_its_reader_alone(server: Server, lethe: Any, tmp_path: Path) -> None:
    serve(server, LISTED)
    out = tmp_path / "acts.jsonl"
    assert lethe("acts", "export", "-o", str(out))[0] == 0
    assert out.stat().st_mode & 0o077 == 0 and len(out.read_bytes().splitlines()) == 4
    num_asked = len(server.seen)
    code, said, _ = lethe("verify", str(out), "--key", str(PUBLIC_KEY))
    assert code == 0 and "ok    acts" in said and "1 can be read by nobody any more" in said
    assert json.loads(lethe("verify", str(out), "--key", str(PUBLIC_KEY), "--json")[1])["valid"]
    assert len(server.seen) == num_asked, "no network"


def test_what_was_done_after_the_head_was_signed_is_left_out(server: Server, lethe: Any, tmp_path: Path) -> None:
    serve(server, LISTED)
    server.answers[f"GET {ACTS}/head"] = [(200, sign_head(log.head(LISTED[:2]), KEY).decode())]
    out = tmp_path / "acts.jsonl"
    assert json.loads(lethe("acts", "export", "-o", str(out), "--json")[1])["acts"] == 2
    assert lethe("verify", str(out), "--key", str(PUBLIC_KEY))[0] == 0


def test_an_edited_export_is_found_with_the_reason(server: Server, lethe: Any, tmp_path: Path) -> None:
    serve(server, LISTED)
    out = tmp_path / "acts.jsonl"
    lethe("acts", "export", "-o", str(out))
    lines = out.read_bytes().splitlines(keepends=True)
    for changed, why in (
        (lines[1:], "removed, added or moved"),
        ([lines[1], lines[0], *lines[2:]], "removed, added or moved"),
        ([lines[0].replace(b"Weber", b"Huber"), *lines[1:]], "was changed"),
        ([lines[0].replace(b"denied", b"approved"), *lines[1:]], "was changed"),
    ):
        out.write_bytes(b"".join(changed))
        code, said, err = lethe("verify", str(out), "--key", str(PUBLIC_KEY))
        assert code == 1 and "FAIL  acts" in said and why in err, why


def test_formulas_in_names_and_texts_are_defused_in_a_spreadsheet(server: Server, lethe: Any, tmp_path: Path) -> None:
    serve(server, LISTED)
    out = tmp_path / "acts.csv"
    assert lethe("acts", "export", "--format", "csv", "-o", str(out))[0] == 0
    with out.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["who"] for row in rows] == ["Dr. Weber", "'=HYPERLINK(1)", "(erased)"]
    assert rows[1]["words"] == "'+cmd|' /C calc'!A0" and rows[0]["words"] == ""


@pytest.mark.parametrize("begin", ["=", "+", "-", "@", "\t", "\r", "\n"])
def test_whatever_a_spreadsheet_takes_for_a_formula_is_defused(begin: str) -> None:
    assert defused(f"{begin}1") == f"'{begin}1"


def test_what_is_no_formula_is_left_as_it_is() -> None:
    assert defused("a=1") == "a=1" and defused(-3) == -3


def test_following_prints_what_is_new(server: Server, lethe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(server, LISTED)
    page = server.answers[f"GET {ACTS}?limit=200"][0][1]
    assert isinstance(page, dict)
    server.answers[f"GET {ACTS}?after=1&limit=200"] = [(200, {**page, "items": page["items"][1:]})]

    def stop(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", stop)
    code, out, _ = lethe("acts", "follow", "--after", "1")
    assert code == 130 and [line.split()[0] for line in out.splitlines()] == ["2", "3"]
