"""`lethe verify`: check a certificate with nothing but the file and the public key; with --replay, the models too."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final

import typer

from lethe.failures import INCOMPLETE, UNUSABLE, CommandFailed, require
from lethe.target import AsJson, connect, examples

if TYPE_CHECKING:
    from lethe.replaying import ReplayOutcome
    from services.audit.certificate import AnyStatement
    from services.audit.verification import Verdict

HELP = examples(
    "lethe verify certificate.json --key lethe.pub.pem",
    "lethe verify certificate.json --key lethe.pub.pem --client hospital-b --opening opening.json",
    "lethe verify certificate.json --key lethe.pub.pem --inclusion proof.json",
    "lethe --url https://lethe.example.org verify certificate.json --key lethe.pub.pem --replay",
)
MARKS: Final = {True: "ok  ", False: "FAIL", None: "n/a "}


def verify(
    context: typer.Context,
    certificate: Annotated[Path, typer.Argument(help="The certificate, as it was downloaded.")],
    key: Annotated[Path, typer.Option(help="The issuer's public key (PEM); several keys if it is countersigned.")],
    model_digest: Annotated[
        str | None, typer.Option("--model", help="Also: the model with this digest must be one it speaks of.")
    ] = None,
    artefacts: Annotated[
        Path | None,
        typer.Option("--list", help="Its list of artefacts; when absent, the file .list.jsonl beside it."),
    ] = None,
    inclusion: Annotated[
        Path | None, typer.Option(help="In place of the list: a proof that one artefact is on it.")
    ] = None,
    client: Annotated[str | None, typer.Option(help="Also: it must be about this client, by --opening.")] = None,
    opening: Annotated[Path | None, typer.Option(help="The opening of the certificate's pseudonyms.")] = None,
    replay: Annotated[
        bool, typer.Option("--replay", help="Recompute the served models from the updates that the coordinator keeps.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Verify a certificate of erasure. Needs no network, unless it is to replay.

    Exit code 0: it holds; 1: it does not, or nothing could be replayed; 2: a file cannot be read; 3: it holds, but the
    list of artefacts is not at hand.
    """
    require("verify", "cryptography")
    from services.audit.verification import Beside, check

    if (client is None) != (opening is None):
        raise CommandFailed("--client and --opening go together", exit_code=UNUSABLE)
    data = _read(certificate)
    with ExitStack() as stack:
        beside = Beside(
            list=_list(stack, certificate, data, artefacts),
            inclusion=_read(inclusion) if inclusion is not None else None,
            client=client,
            opening=_read(opening) if opening is not None else None,
        )
        verdict = check(data, _read(key), model_digest=model_digest, beside=beside)
    outcome = None
    if verdict.valid and replay:
        assert verdict.statement is not None
        outcome = _replay(context, verdict.statement, json)
    if json:
        _print_json(verdict, outcome)
    else:
        _print(verdict, outcome)
    if failed := [one for one in verdict.checks if one.ok is False]:
        raise CommandFailed(f"the certificate is not valid ({failed[0].name}): {failed[0].detail}")
    if outcome is not None and not outcome.passed:
        raise CommandFailed(f"the replay fails: {outcome.why_not}")
    if not verdict.complete:
        raise CommandFailed(
            "the signature holds; list not at hand",
            next_step="lethe certificates get fetches it with the certificate, or name it: --list FILE",
            exit_code=INCOMPLETE,
        )


def _list(stack: ExitStack, certificate: Path, data: bytes, given: Path | None) -> BinaryIO | None:
    """The file that was given, or the one that lies beside the certificate under the usual name."""
    from services.audit.artefact_list import path_beside
    from services.audit.certificate import CertificateInvalid, artefact_root

    if given is None:
        try:
            has_list = artefact_root(data) is not None
        except CertificateInvalid:  # the verdict says why
            has_list = False
        given = path_beside(certificate)
        if not has_list or not given.exists():
            return None
    try:
        return stack.enter_context(given.open("rb"))
    except OSError as error:
        raise CommandFailed(f"cannot read {given}: {error.strerror or error}", exit_code=UNUSABLE) from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CommandFailed(f"cannot read {path}: {error.strerror or error}", exit_code=UNUSABLE) from error


def _replay(context: typer.Context, statement: AnyStatement, quiet: bool) -> ReplayOutcome:
    from lethe.printing import say
    from lethe.replaying import replay_served

    with connect(context) as coordinator:
        return replay_served(coordinator, statement, (lambda text: None) if quiet else say)


def _print(verdict: Verdict, outcome: ReplayOutcome | None) -> None:
    for one in verdict.checks:
        print(f"{MARKS[one.ok]}  {one.name:<12} {one.detail}")
    if outcome is not None:
        word = "ok  " if outcome.passed else "FAIL"
        print(f"{word}  {'replay':<12} {outcome.report.replayed} of {outcome.report.total} steps: {outcome.verdict}")
    if verdict.valid and verdict.statement is not None:
        for limit in verdict.statement.predicate.limits:
            print(f"note  {limit}")


def _print_json(verdict: Verdict, outcome: ReplayOutcome | None) -> None:
    from lethe.printing import print_record

    document: dict[str, Any] = {
        "valid": verdict.valid and (outcome is None or outcome.passed),
        "complete": verdict.complete,
        "checks": [{"name": one.name, "ok": one.ok, "detail": one.detail} for one in verdict.checks],
    }
    if outcome is not None:
        document["replay"] = {
            "verdict": outcome.verdict,
            "steps": outcome.report.total,
            "replayed": outcome.report.replayed,
            "missing": len(outcome.report.missing),
            "faults": outcome.faults,
        }
    print_record(document, as_json=True)
