"""A page as one HTML file that loads nothing: its style and its script are inside, and a content security policy allows
no others. `certificate_page` has the certificate and its verification in it; `verify_page` verifies others.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from html import escape
from importlib.resources import files
from typing import Final

from services.audit.pages.content import Block, Content, Facts, Grid, Listing, Paragraph, Section

MEDIA_TYPE: Final = "text/html; charset=utf-8"
VERIFY: Final = "verify.js"
HAND_OVER: Final = "hand_over.js"
MARKS: Final = {"good": "✔", "unsure": "●", "bad": "✘"}
BEYOND: Final = (
    "Checked here are the form and the signatures. lethe verify also checks that the claims do not contradict each "
    "other, that the list of artefacts is the certified one, whom it is about, and, with --replay, that the models can "
    "be computed again without the erased data."
)
WHAT_A_PAGE_PROVES: Final = (
    "A page that somebody sent you can say anything, also that it is verified. If you doubt it, do not use this one: "
    "drop it or the certificate on a verify.html that you got elsewhere, or use lethe verify."
)
TRUSTED: Final = (
    '<label for="trusted">Fingerprint of the coordinator’s key (sha256:…), or the public key itself, as you got it '
    'elsewhere</label><textarea id="trusted" rows="3" spellcheck="false" autocomplete="off"></textarea>'
)


def certificate_page(content: Content, certificate: bytes, keys_pem: bytes) -> str:
    """`keys_pem`: public keys that come with it; the reader's own word on them is asked for."""
    one, other = content.pair
    body = [
        f'<header><h1>{escape(content.title)}</h1><p class="headline">{escape(content.headline)}</p>',
        f'<p class="trust {content.standing}">{MARKS[content.standing]} {escape(content.trust)}</p></header>',
        f'<div class="pair">{_section(one)}{_section(other)}</div>',
        *map(_section, content.sections),
        '<section id="verification"><h2>Verify it here</h2>',
        f"<p>{escape(WHAT_A_PAGE_PROVES)}</p>{TRUSTED}",
        '<div id="outcome" role="status"><p>The script of this page, which verifies the certificate, did not run.</p>',
        "</div>",
        f"<p>{escape(BEYOND)}</p>",
        '<details><summary>What the signed bytes say</summary><dl id="facts"></dl></details></section>',
        f'<pre id="envelope" hidden>{base64.b64encode(certificate).decode()}</pre>',
        f'<pre id="keys" hidden>{base64.b64encode(keys_pem).decode()}</pre>',
    ]
    return _page(content.title, "".join(body))


@cache
def verify_page() -> str:
    body = [
        "<header><h1>Verify a certificate of erasure</h1>",
        "<p>Nothing leaves this page: it loads nothing and sends nothing. Keep it as a file of your own.</p></header>",
        '<section><label for="files">Drop a certificate here (certificate.json, or the HTML page of one) and the '
        'issuer’s public key (.pem), or choose them</label><input type="file" id="files" multiple>',
        f'{TRUSTED}<div id="outcome" role="status"><p>No certificate yet.</p></div><p>{escape(BEYOND)}</p></section>',
        '<section><h2>What the signed bytes say</h2><dl id="facts"></dl></section>',
    ]
    return _page("Verify a certificate of erasure", "".join(body))


@cache
def hand_over_page() -> str:
    """Opens a link that hands a certificate over: nothing is asked for before the reader presses the button."""
    body = [
        "<header><h1>A certificate of erasure for you</h1>",
        "<p>Somebody sent you this link to hand a certificate over: the signed evidence of what was erased. "
        "<strong>It can be opened once.</strong> Open it where you can keep files.</p></header>",
        '<section><p><button id="open" disabled>Open it and hand it over to me</button></p>',
        '<div id="outcome" role="status"><p>The script of this page, which opens the link, did not run.</p></div>',
        '<ul id="files"></ul></section>',
        "<section><h2>What to do with it</h2><p>Keep all files as they are. certificate.html is for reading. "
        '<a href="/verify.html">verify.html</a> and the command lethe verify check the certificate; compare the '
        "fingerprint of the public key with one that you got elsewhere.</p></section>",
    ]
    return _page("A certificate of erasure for you", "".join(body), HAND_OVER)


def policy(script: str = VERIFY) -> str:
    """The policy that says what these pages may load and do."""
    digest, style = _digest(_asset(script)), _digest(_asset("page.css"))
    asks = "connect-src 'self'; " if script == HAND_OVER else ""
    return f"default-src 'none'; {asks}script-src '{digest}'; style-src '{style}'; base-uri 'none'; form-action 'none'"


def _page(title: str, body: str, script: str = VERIFY) -> str:
    head = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy(script)}">'
        '<meta name="referrer" content="no-referrer"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_asset('page.css')}</style>"
    )
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body><main>{body}</main>\n'
        f"<script>{_asset(script)}</script></body></html>\n"
    )


@cache
def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _section(section: Section) -> str:
    return f"<section><h2>{escape(section.title)}</h2>{''.join(map(_block, section.blocks))}</section>"


def _block(block: Block) -> str:
    match block:
        case Paragraph(text):
            return f"<p>{escape(text)}</p>"
        case Facts(rows):
            return f"<dl>{''.join(f'<dt>{escape(name)}</dt><dd>{escape(value)}</dd>' for name, value in rows)}</dl>"
        case Listing(items):
            return f"<ul>{''.join(f'<li>{escape(item)}</li>' for item in items)}</ul>"
        case Grid(headings, rows):
            body = "".join(_row("td", row) for row in rows)
            table = f"<table><thead>{_row('th', headings)}</thead><tbody>{body}</tbody></table>"
            return f'<div class="wide">{table}</div>'


def _row(cell: str, values: tuple[str, ...]) -> str:
    return f"<tr>{''.join(f'<{cell}>{escape(value)}</{cell}>' for value in values)}</tr>"
