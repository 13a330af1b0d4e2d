"""`lethe verify`: check a certificate with nothing but the file and the public key; with --replay, the models too."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lethe.failures import UNUSABLE, CommandFailed, require
from lethe.target import AsJson, connect, examples

if TYPE_CHECKING:
    from lethe.replaying import Findings
    from services.audit.certificate import Statement
    from services.audit.verification import Verdict

HELP = examples(
    "lethe verify certificate.json --key lethe.pub.pem",
    "lethe --url https://lethe.example.org verify certificate.json --key lethe.pub.pem --replay",
)


def verify(
    context: typer.Context,
    certificate: Annotated[Path, typer.Argument(help="The certificate, as it was downloaded.")],
    key: Annotated[Path, typer.Option(help="The issuer's public key (PEM); several keys if it is countersigned.")],
    model_digest: Annotated[
        str | None, typer.Option("--model", help="Also: the model with this digest must be one it speaks of.")
    ] = None,
    replay: Annotated[
        bool, typer.Option("--replay", help="Recompute the served models from the updates that the coordinator keeps.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Verify a certificate of erasure. Needs no network, unless it is to replay.

    Exit code 0: it holds; 1: it does not, or nothing could be replayed; 2: a file cannot be read.
    """
    require("verify", "cryptography")
    from services.audit.verification import check

    verdict = check(_read(certificate), _read(key), model_digest=model_digest)
    findings = None
    if verdict.valid and replay:
        assert verdict.statement is not None
        findings = _replay(context, verdict.statement, json)
    if json:
        _print_json(verdict, findings)
    else:
        _print(verdict, findings)
    failed = [one.name for one in verdict.checks if not one.ok]
    if failed:
        reason = next(one.detail for one in verdict.checks if not one.ok)
        raise CommandFailed(f"the certificate is not valid ({failed[0]}): {reason}")
    if findings is not None and not findings.passed:
        raise CommandFailed(f"the replay fails: {findings.why_not}")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CommandFailed(f"cannot read {path}: {error.strerror or error}", exit_code=UNUSABLE) from error


def _replay(context: typer.Context, statement: Statement, quiet: bool) -> Findings:
    from lethe.printing import say
    from lethe.replaying import replay_served

    with connect(context) as coordinator:
        return replay_served(coordinator, statement, (lambda text: None) if quiet else say)


def _print(verdict: Verdict, findings: Findings | None) -> None:
    for one in verdict.checks:
        print(f"{'ok  ' if one.ok else 'FAIL'}  {one.name:<12} {one.detail}")
    if findings is not None:
        word = "ok  " if findings.passed else "FAIL"
        print(f"{word}  {'replay':<12} {findings.report.replayed} of {findings.report.total} steps: {findings.verdict}")
    if verdict.valid and verdict.statement is not None:
        for limit in verdict.statement.predicate.limits:
            print(f"note  {limit}")


def _print_json(verdict: Verdict, findings: Findings | None) -> None:
    from lethe.printing import print_record

    document: dict[str, Any] = {
        "valid": verdict.valid and (findings is None or findings.passed),
        "checks": [{"name": one.name, "ok": one.ok, "detail": one.detail} for one in verdict.checks],
    }
    if findings is not None:
        document["replay"] = {
            "verdict": findings.verdict,
            "steps": findings.report.total,
            "replayed": findings.report.replayed,
            "missing": len(findings.report.missing),
            "faults": findings.faults,
        }
    print_record(document, as_json=True)
