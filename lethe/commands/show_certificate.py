"""`lethe certificates show` and `verifier`: a certificate as a page for people, and a page that verifies others.

Needs the extra `verify`, unlike the other commands about certificates.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lethe.commands.verify import STEPS, open_list
from lethe.failures import UNUSABLE, CommandFailed, require
from lethe.target import connect, examples

if TYPE_CHECKING:
    from services.audit.pages.certificate import Reading

SHOW_HELP = examples(
    "lethe certificates show hospital-b",
    "lethe certificates show hospital-b --format html -o certificate.html",
    "lethe certificates show certificate.json --key lethe.pub.pem --format md",
    "lethe certificates show certificate.json --key lethe.pub.pem --client hospital-b --opening opening.json",
)
VERIFIER_HELP = examples("lethe certificates verifier -o verify.html")
Output = Annotated[Path | None, typer.Option("--output", "-o", help="Where to write it; standard output when absent.")]


def show(
    context: typer.Context,
    certificate: Annotated[
        str,
        typer.Argument(metavar="FILE|ID|CLIENT", help="A certificate's file; or ask the coordinator for a request's."),
    ],
    format: Annotated[
        Literal["text", "md", "html"], typer.Option(help="html is one file that verifies itself.")
    ] = "text",
    key: Annotated[
        Path | None, typer.Option(help="The issuer's public key (PEM), obtained on a way that you trust.")
    ] = None,
    client: Annotated[str | None, typer.Option(help="Also: it must be about this client, by --opening.")] = None,
    opening: Annotated[Path | None, typer.Option(help="The opening of the certificate's pseudonyms.")] = None,
    output: Output = None,
) -> None:
    """A certificate for people: the verdict, what is guaranteed and what is not, what was touched, the audit. A file
    needs no network. What does not verify is not shown: exit code 1."""
    require("verify", "cryptography")
    from services.audit.pages import html, markdown, text
    from services.audit.pages.certificate import NotShown, content_of

    if (client is None) != (opening is None):
        raise CommandFailed("--client and --opening go together", exit_code=UNUSABLE)
    if client is not None and key is None and Path(certificate).is_file():
        raise CommandFailed("whom a certificate is about is checked with its key: give --key", exit_code=UNUSABLE)
    try:
        reading = _reading(context, certificate, key, client, opening)
    except NotShown as invalid:
        raise CommandFailed(str(invalid), next_step=STEPS.get(invalid.check)) from invalid
    content = content_of(reading)
    match format:
        case "text":
            _write(text.write(content), output)
        case "md":
            _write(markdown.write(content), output)
        case "html":
            _write(html.certificate_page(content, reading.certificate, reading.keys_pem), output)


def verifier(output: Output = None) -> None:
    """A page that verifies certificates in a browser: one file, no network, no coordinator. Give it to whoever is to
    check a certificate, on another way than the certificate itself."""
    from services.audit.pages.html import verify_page

    _write(verify_page(), output)


def _reading(
    context: typer.Context, certificate: str, key: Path | None, client: str | None, opening: Path | None
) -> Reading:
    from services.audit.pages.certificate import read
    from services.audit.verification import Beside

    opened = opening.read_bytes() if opening is not None else None
    file, given = Path(certificate), key.read_bytes() if key is not None else None
    if not file.is_file():
        return _fetched(context, certificate, given, client, opened)
    data = file.read_bytes()
    with ExitStack() as stack:
        beside = Beside(list=open_list(stack, file, data, None), client=client, opening=opened)
        return read(data, given, beside=beside)


def _fetched(
    context: typer.Context, name: str, given: bytes | None, client: str | None, opening: bytes | None
) -> Reading:
    """A certificate as the coordinator gives it; its own word on its key is not the reader's."""
    import io

    from services.audit.pages.certificate import read
    from services.audit.verification import Beside

    with connect(context) as coordinator:
        certificate = coordinator.erasures.get(name).certificate()
        keys = given or coordinator.erasures.discovery().public_key.encode()
    artefacts = None if certificate.artefacts is None else io.BytesIO(certificate.artefacts)
    beside = Beside(list=artefacts, client=client, opening=opening)
    return read(certificate.content, keys, "reader" if given else "issuer", beside)


def _write(page: str, output: Path | None) -> None:
    from lethe.printing import say

    if output is None:
        print(page, end="")
        return
    output.write_text(page, "utf-8")
    say(f"{output}: {len(page.encode())} bytes")
