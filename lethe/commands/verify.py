"""`lethe verify`: check a certificate with nothing but the file and the public key; with --replay, the models too."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final

import typer

from lethe.commands.option_groups import with_groups
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
    "lethe --url https://lethe.example.org verify certificate.json",
    "lethe verify acts.jsonl --key lethe.pub.pem",
)
MARKS: Final = {True: "ok  ", False: "FAIL", None: "n/a "}


@dataclass(frozen=True)
class Compared:
    """What a certificate is compared with, beside the keys."""

    model_digest: Annotated[
        str | None, typer.Option("--model", help="Also: the model with this digest must be one it speaks of.")
    ] = None
    artefacts: Annotated[
        Path | None,
        typer.Option("--list", help="Its list of artefacts; when absent, the file .list.jsonl beside it."),
    ] = None
    inclusion: Annotated[
        Path | None, typer.Option(help="In place of the list: a proof that one artefact is on it.")
    ] = None
    client: Annotated[str | None, typer.Option(help="Also: it must be about this client, by --opening.")] = None
    opening: Annotated[Path | None, typer.Option(help="The opening of the certificate's pseudonyms.")] = None


@with_groups
def verify(
    context: typer.Context,
    certificate: Annotated[
        Path, typer.Argument(help="The certificate, as it was downloaded; or an export of the log of acts.")
    ],
    *,
    key: Annotated[
        Path | None,
        typer.Option(
            help="The issuer's public key (PEM); several keys if it is countersigned. When absent, the coordinator is "
            "asked for every key that it ever signed with."
        ),
    ] = None,
    compared: Compared,
    replay: Annotated[
        bool, typer.Option("--replay", help="Recompute the served models from the updates that the coordinator keeps.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Verify a certificate of erasure, or an export of the log of acts. Needs no network, unless it is to replay
    or the key is not given.

    Exit code 0: it holds; 1: it does not, or nothing could be replayed; 2: a file cannot be read; 3: it holds, but the
    list of artefacts is not at hand.
    """
    require("verify", "cryptography")
    from services.audit.acts import is_export
    from services.audit.verification import Beside, check

    if (compared.client is None) != (compared.opening is None):
        raise CommandFailed("--client and --opening go together", exit_code=UNUSABLE)
    data = _read(certificate)
    public_keys = _read(key) if key is not None else _keys_of_coordinator(context)
    if is_export(data):
        _verify_acts(data, public_keys, json)
        return
    with ExitStack() as stack:
        beside = Beside(
            list=open_list(stack, certificate, data, compared.artefacts),
            inclusion=_read(compared.inclusion) if compared.inclusion else None,
            client=compared.client,
            opening=_read(compared.opening) if compared.opening else None,
        )
        verdict = check(data, public_keys, model_digest=compared.model_digest, beside=beside)
    outcome = None
    if replay and verdict.valid and verdict.statement is not None:
        outcome = _replay(context, verdict.statement, json)
    (_print_json if json else _print)(verdict, outcome)
    _judge(verdict, outcome)


STEPS: Final[Mapping[str, str]] = {
    "signatures": "it may be of another installation, or older than its key: ask the issuer for the key with that id, "
    "or list those of an installation: lethe --url URL keys list",
    "opening": "take the client's name as it was in the federation, and the opening of this certificate: "
    "lethe certificates opening ID",
}
"""What may help where a check fails."""


def _judge(verdict: Verdict, outcome: ReplayOutcome | None) -> None:
    """The exit code says what the lines before said."""
    _refuse("certificate", verdict)
    if outcome is not None and not outcome.passed:
        raise CommandFailed(f"the replay fails: {outcome.why_not}")
    if not verdict.complete:
        raise CommandFailed(
            "the signature holds; list not at hand",
            next_step="lethe certificates get fetches it with the certificate, or name it: --list FILE",
            exit_code=INCOMPLETE,
        )


def _refuse(what: str, verdict: Verdict) -> None:
    if failed := [one for one in verdict.checks if one.ok is False]:
        raise CommandFailed(
            f"the {what} is not valid ({failed[0].name}): {failed[0].detail}", next_step=STEPS.get(failed[0].name)
        )


def _verify_acts(export: bytes, key: bytes, as_json: bool) -> None:
    from io import BytesIO

    from services.audit.acts import check
    from services.audit.verification import Verdict

    verdict = Verdict(check(BytesIO(export), key), None)
    (_print_json if as_json else _print)(verdict, None)
    _refuse("log of acts", verdict)


def open_list(stack: ExitStack, certificate: Path, data: bytes, given: Path | None) -> BinaryIO | None:
    """The list of artefacts: the file that was given, or the one that lies beside the certificate under the usual name.
    None: there is neither, or the certificate has no list."""
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


def _keys_of_coordinator(context: typer.Context) -> bytes:
    """Every key that the coordinator ever signed with, those that were rotated out among them. Who issued the
    certificate is then the coordinator's own word."""
    from lethe.printing import say

    with connect(context) as coordinator:
        keys = coordinator.keys()
        say(
            f"checked with the {len(keys)} keys that {coordinator.url} names as its own: compare the id of the key that"
        )
        say("signed with one that you have from elsewhere, or name a file that you trust: --key FILE")
    return "".join(key.public_key for key in keys).encode()


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
