"""`lethe certificates`: the evidence of completed erasures, and the key it is verified with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lethe.target import AsJson, connect, examples

app = typer.Typer(no_args_is_help=True, help="Certificates of erasure, and the public key they are verified with.")

RequestId = Annotated[
    str, typer.Argument(metavar="ID|CLIENT", help="The erasure request's id, or the forgotten client's name.")
]


@app.command("list", **examples("lethe certificates list", "lethe certificates list --federation cardiology --json"))
def list_(
    context: typer.Context,
    federation: Annotated[str | None, typer.Option("--federation", "-f", help="Only of this one: name or id.")] = None,
    json: AsJson = False,
) -> None:
    """Completed requests, newest first: each has a certificate."""
    from lethe.printing import Column, print_answers, when

    columns: dict[str, Column] = {
        "clients": lambda request: ", ".join(request["subjects"]),
        "scope": "scope",
        "method": "chosen",
        "guarantee": "guarantee",
        "completed": when("completed_at"),
        "in time": lambda request: request["completed_at"] <= request["legal_deadline"],
        "id": "id",
    }
    with connect(context) as coordinator:
        print_answers(coordinator.erasures.list(federation=federation, status="completed"), columns, as_json=json)


@app.command(**examples("lethe certificates get hospital-b -o certificate.json"))
def get(
    context: typer.Context,
    id: RequestId,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write it, byte for byte as it was signed.")],
) -> None:
    """The certificate of a completed request, and its list of artefacts beside it. Keep the files as they are: written
    anew they do not verify."""
    from lethe.printing import say
    from services.audit.artefact_list import path_beside

    with connect(context) as coordinator:
        certificate = coordinator.erasures.get(id).certificate()
    certificate.save(output)
    say(f"{output}: {len(certificate.content)} bytes")
    if certificate.artefacts is not None:
        say(f"{path_beside(output)}: {len(certificate.artefacts)} bytes")
    else:
        say(f"no list beside it: {certificate.why_no_artefacts}")


@app.command(**examples("lethe certificates opening hospital-b -o opening.json"))
def opening(
    context: typer.Context,
    id: RequestId,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write it.")],
) -> None:
    """What shows whom a certificate is about: `lethe verify --client NAME --opening FILE`. Give it to nobody else."""
    from lethe.printing import say

    with connect(context) as coordinator:
        content = coordinator.erasures.get(id).opening()
    output.touch(mode=0o600)
    output.chmod(0o600)
    output.write_bytes(content)
    say(f"{output}: {len(content)} bytes")


@app.command("hand-over", **examples("lethe certificates hand-over hospital-b --days 30"))
def hand_over(
    context: typer.Context,
    id: RequestId,
    days: Annotated[int, typer.Option(min=1, max=90, help="How long the link can be opened.")] = 14,
    json: AsJson = False,
) -> None:
    """Make a link that hands the certificate, its list, its opening and the public key over once, to somebody without a
    credential: the client who left. It is shown this once."""
    from urllib.parse import urljoin

    from lethe.printing import print_record, say

    with connect(context) as coordinator:
        made = coordinator.erasures.get(id).hand_over(days=days)
        document = {**made.document, "url": urljoin(f"{coordinator.url}/", made.url)}
    if json:
        print_record(document, as_json=True)
        return
    typer.echo(document["url"])
    say(f"Until {made.expires_at:%Y-%m-%d %H:%M} UTC, once. Send it to the client who left, and to nobody else.")
    say(f"Revoke it with: lethe certificates revoke-hand-over {made.id}")


@app.command("hand-overs", **examples("lethe certificates hand-overs hospital-b"))
def hand_overs(context: typer.Context, id: RequestId, json: AsJson = False) -> None:
    """The links that were made for a request, newest first: whether and when each was opened."""
    from lethe.printing import Column, print_answers, when

    columns: dict[str, Column] = {
        "made": when("created_at"),
        "until": when("expires_at"),
        "opened": when("opened_at"),
        "revoked": when("revoked_at"),
        "id": "id",
    }
    with connect(context) as coordinator:
        print_answers(coordinator.erasures.get(id).hand_overs(), columns, as_json=json)


@app.command("revoke-hand-over", **examples("lethe certificates revoke-hand-over 0190f3a0-…"))
def revoke_hand_over(
    context: typer.Context, id: Annotated[str, typer.Argument(metavar="ID", help="The link's id.")]
) -> None:
    """Make a link that was not opened yet void."""
    from lethe.printing import say

    with connect(context) as coordinator:
        coordinator.erasures.revoke_hand_over(id)
    say("It can be opened no more.")


@app.command(**examples("lethe certificates prove --list certificate.list.jsonl --digest sha256:… -o proof.json"))
def prove(
    artefacts: Annotated[Path, typer.Option("--list", help="The list of artefacts beside the certificate.")],
    digest: Annotated[str, typer.Option(help="Of the artefact.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the proof.")],
) -> None:
    """Prove that one artefact is on a certificate's list, for somebody who must not see the others. Needs no network;
    `lethe verify --inclusion FILE` checks it."""
    from lethe.failures import UNUSABLE, CommandFailed
    from lethe.printing import say
    from services.audit.artefact_list import ListInvalid
    from services.audit.inclusion import ProofInvalid, to_bytes
    from services.audit.inclusion import prove as prove_inclusion

    try:
        with artefacts.open("rb") as file:
            proof = to_bytes(prove_inclusion(file, digest))
        output.write_bytes(proof)
    except OSError as error:
        raise CommandFailed(f"cannot use {error.filename}: {error.strerror}", exit_code=UNUSABLE) from error
    except (ListInvalid, ProofInvalid) as invalid:
        raise CommandFailed(str(invalid)) from invalid
    say(f"{output}: {len(proof)} bytes")


@app.command(**examples("lethe certificates key -o lethe.pub.pem"))
def key(
    context: typer.Context,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the PEM file.")],
) -> None:
    """The coordinator's public key. A verifier should get it on a way that it trusts, and keep it."""
    from lethe.failures import UNUSABLE, CommandFailed
    from lethe.printing import say

    with connect(context) as coordinator:
        found = coordinator.erasures.discovery()
    try:
        output.write_text(found.public_key, "utf-8")
    except OSError as error:
        raise CommandFailed(f"cannot write {output}: {error}", exit_code=UNUSABLE) from error
    say(f"{output}: {found.key_id}")
