"""A certificate for people: what a page says, in each of its forms, and that names in it stay names."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from services.audit.certificate import issue, sign, statement, to_bytes
from services.audit.pages import html, markdown, text
from services.audit.pages.certificate import NotShown, Reading, content_of, read
from services.audit.pages.content import Content, visible
from services.audit.predicate import AuditFigure, ErasurePredicate, Guarantee, Incident, Influence, Method, Package
from services.audit.verification import Beside
from tests.golden import certificate_v1 as first
from tests.golden import certificate_v2 as second
from tests.golden.certificate_v1 import KEY, PUBLIC_KEY, SUBJECTS
from tests.golden.home_0001 import HERE
from tests.support.documents import ROOT

KEYS = PUBLIC_KEY.read_bytes()
HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)>'
UNSEEN = "safe\u202egnp.exe\x1b[31m\u200b"


def page(content: Content, form: str, certificate: bytes = b"") -> str:
    match form:
        case "text":
            return text.write(content)
        case "md":
            return markdown.write(content)
        case _:
            return html.certificate_page(content, certificate, KEYS)


def shown(predicate: ErasurePredicate) -> Content:
    return content_of(read(issue(predicate, SUBJECTS, KEY), KEYS))


def words_of(document: str) -> str:
    """In one line, without the layout."""
    return re.sub(r"\s+", " ", document)


@pytest.mark.parametrize("form", ["text", "md", "html"])
@pytest.mark.parametrize("version", [first, second])
def test_a_page_says_the_verdict_the_guarantee_and_every_limit(version: Any, form: str) -> None:
    certificate = version.CERTIFICATE.read_bytes()
    found = content_of(read(certificate, KEYS))
    said = words_of(page(found, form, certificate))
    predicate = version.predicate()
    for sentence in (found.headline, predicate.guarantee.meaning, *predicate.limits):
        assert words_of(sentence) in said, sentence
    for title in ("What is guaranteed", "What is not", "Who filed, who approved", "The audit"):
        assert title in said
    for digest in (served for _, served in SUBJECTS):
        assert digest in said
    assert str(predicate.request.id) in said.replace("\\", "")


def test_limits_weigh_as_much_as_the_guarantee() -> None:
    """The same heading, beside it; in text and Markdown the next one."""
    found = shown(second.predicate())
    assert [section.title for section in found.pair] == ["What is guaranteed", "What is not"]
    written = html.certificate_page(found, b"", KEYS)
    assert re.search(r'<div class="pair"><section><h2>What is guaranteed</h2>.+?<section><h2>What is not</h2>', written)
    assert "## What is guaranteed" in markdown.write(found) and "## What is not" in markdown.write(found)


def test_how_far_it_was_verified_is_said_first() -> None:
    certificate = second.CERTIFICATE.read_bytes()
    by_reader, by_issuer, by_nobody = (
        read(certificate, KEYS),
        read(certificate, KEYS, "issuer"),
        read(certificate, None),
    )
    said = [content_of(one).trust for one in (by_reader, by_issuer, by_nobody)]
    assert [one.partition(":")[0] for one in said] == ["Verified", "Consistent, not proved", "Not verified"]
    assert [content_of(one).standing for one in (by_reader, by_issuer, by_nobody)] == ["good", "unsure", "unsure"]


@pytest.mark.parametrize("keys", [KEYS, None])
def test_what_does_not_verify_is_not_shown(keys: bytes | None) -> None:
    certificate = second.CERTIFICATE.read_bytes()
    with pytest.raises(NotShown, match="form"):
        read(certificate[:-1], keys)
    forged = to_bytes(sign(statement(second.predicate(), [("digits/all", SUBJECTS[0][1])]), KEY))
    with pytest.raises(NotShown, match="claims"):
        read(forged, keys)
    if keys is not None:
        with pytest.raises(NotShown, match="opening"):
            read(certificate, keys, beside=Beside(client="hospital-c", opening=second.OPENING.read_bytes()))


def test_whom_it_is_about_is_named_when_the_opening_shows_it() -> None:
    beside = Beside(client="hospital-b", opening=second.OPENING.read_bytes())
    found = content_of(read(second.CERTIFICATE.read_bytes(), KEYS, beside=beside))
    assert "The client hospital-b, as the opening" in words_of(text.write(found))
    assert "hospital-b" not in text.write(content_of(read(second.CERTIFICATE.read_bytes(), KEYS)))


def test_an_audit_is_shown_with_its_power() -> None:
    figures = (
        AuditFigure(
            name="a", value=0.1, reference=0.9, reference_is="the model before the erasure; within bounds; more"
        ),
        AuditFigure(
            name="b", value=0.5, reference=0.5, reference_is="the model before the erasure; says nothing: before"
        ),
        AuditFigure(name="c", value=0.5),
    )
    approximate = second.predicate().model_copy(update={"guarantee": Guarantee.plain("approximate")})
    found = shown(approximate.model_copy(update={"audit": figures}))
    (audit,) = [section for section in found.sections if section.title == "The audit"]
    assert [row[-1] for row in audit.blocks[1].rows] == ["yes", "no: it says nothing", "not recorded"]  # type: ignore[union-attr]
    none = words_of(text.write(shown(approximate.model_copy(update={"audit": ()}))))
    assert "nothing that was measured shows how much of the data the models forgot" in none


def test_the_power_of_a_real_audit_is_read_from_its_certificate() -> None:
    """Of an earlier release, which wrote no powers, and of the words that the verdict writes today."""
    earlier = read((HERE / "certificate-approximate.json").read_bytes(), (HERE / "issuer.pub.pem").read_bytes())
    assert "The audit" in text.write(content_of(earlier))


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs


def hostile() -> ErasurePredicate:
    earlier = second.predicate()
    cohorts = tuple(one.model_copy(update={"name": HOSTILE}) for one in earlier.cohorts)
    return earlier.model_copy(
        update={
            "method": Method(name=HOSTILE, parameters={HOSTILE: UNSEEN}, package=Package(name=HOSTILE, version="1")),
            "limits": (*earlier.limits, HOSTILE, f"| a | [b](javascript:c) `d` *e* {UNSEEN}"),
            "cohorts": cohorts,
            "still_shaped_by": (Influence(aspect="tree-shape", explanation=HOSTILE),),
            "incidents": (Incident(at=earlier.request.submitted_at, kind="a", explanation=HOSTILE),),
            "request": earlier.request.model_copy(update={"regulation": HOSTILE}),
            "audit": (AuditFigure(name=HOSTILE, value=1.0, reference_is=HOSTILE),),
        }
    )


def test_html_in_names_is_text() -> None:
    subjects = [(HOSTILE, digest) for _, digest in SUBJECTS[:1]] + SUBJECTS
    certificate = to_bytes(sign(statement(hostile(), subjects), KEY))
    content = content_of(Reading(certificate, read(certificate, None).statement))
    plain, found = Tags(), Tags()
    plain.feed(html.certificate_page(shown(second.predicate()), certificate, KEYS))
    found.feed(html.certificate_page(content, certificate, KEYS))
    assert set(found.tags) == set(plain.tags) and found.tags.count("script") == 1
    assert "img" not in found.tags
    assert not [name for name, _ in found.attributes if name.startswith("on") or name in ("src", "href")]


def test_markup_in_names_is_text_in_markdown_and_no_row_is_broken() -> None:
    written = markdown.write(content_of(read(issue(hostile(), SUBJECTS, KEY), KEYS)))
    assert "<script" not in written.replace("\\<", "") and "](" not in written.replace("\\](", "")
    for line in written.splitlines():
        if line.startswith("|"):
            cells = len(re.findall(r"(?<!\\)\|", line))
            assert cells in (3, 7, 6, 5), line


@pytest.mark.parametrize("form", ["text", "md", "html"])
def test_what_cannot_be_seen_is_shown_as_its_code(form: str) -> None:
    written = page(content_of(read(issue(hostile(), SUBJECTS, KEY), KEYS)), form)
    for one in ("\u202e", "\x1b", "\u200b"):
        assert one not in written
    assert "u{202e}" in written and visible("a\nb") == "a\\u{a}b"


def test_a_page_loads_nothing_and_its_policy_allows_only_its_own_script_and_style() -> None:
    for written in (html.verify_page(), html.certificate_page(shown(second.predicate()), b"", KEYS)):
        assert f'<meta http-equiv="Content-Security-Policy" content="{html.policy()}">' in written
        assert "unsafe" not in html.policy() and html.policy().startswith("default-src 'none'; ")
        assert not re.search(r"(?:src|href)\s*=|url\(|@import|fetch\(|XMLHttp|innerHTML|outerHTML", written)


def test_the_page_that_verifies_is_in_the_documents_as_the_code_writes_it() -> None:
    """So that it can be had from here, and not only from whoever hands a certificate over."""
    message = "run: lethe certificates verifier -o docs/verify.html"
    assert (ROOT / "docs" / "verify.html").read_text("utf-8") == html.verify_page(), message
