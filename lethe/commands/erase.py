"""`lethe erase`: ask that clients be forgotten, and follow it until the certificate is there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lethe.commands.clients import Federation
from lethe.commands.option_groups import with_groups
from lethe.failures import UNUSABLE, CommandFailed
from lethe.target import AsJson, connect, examples

if TYPE_CHECKING:
    from lethe.client.synchronous.erasures import Erasure

app = typer.Typer(
    invoke_without_command=True,
    help="Forget clients: file a request, preview what it would take, follow and judge requests.",
    **examples(
        "lethe erase preview --client hospital-b",
        "lethe erase --client hospital-b --watch",
        "lethe erase --client hospital-b --approve-first --ground withdrawal --ref ticket-4711",
        "lethe erase --client hospital-b --samples 3,17,20-25 --watch",
        "lethe erase --client hospital-b --approximate --method pga --recovery imba_ulrc,encoder_epochs=50",
    ),
)

RequestId = Annotated[
    str, typer.Argument(metavar="ID|CLIENT", help="The request's id, or the name of a client whom it is about.")
]


@dataclass(frozen=True)
class Wanted:
    """Whom to forget, and how."""

    client: Annotated[
        list[str] | None, typer.Option("--client", help="The client's name; may be given several times.")
    ] = None
    samples: Annotated[
        str | None,
        typer.Option(
            help="Forget only these rows of the client's data, from 0: 3,17,20-25 or @FILE; the client stays."
        ),
    ] = None
    federation: Federation = None
    method: Annotated[str, typer.Option(help="auto, or one of the methods of the coordinator.")] = "auto"
    param: Annotated[
        list[str] | None, typer.Option("--param", metavar="NAME=VALUE", help="A parameter of the method; repeatable.")
    ] = None
    recovery_rounds: Annotated[
        int | None, typer.Option(min=0, help="Rounds that a re-initialised cohort trains before the request is done.")
    ] = None
    recovery: Annotated[
        str | None,
        typer.Option(
            metavar="METHOD[,NAME=VALUE]...",
            help="How cohorts recover: plain (when absent), imba_ulrc, fedrs, moon or quickdrop, with its parameters.",
        ),
    ] = None
    approximate: Annotated[
        bool, typer.Option("--approximate", help="Allow methods that mend a model instead of training it again.")
    ] = False
    or_retrain: Annotated[
        bool, typer.Option("--or-retrain", help="Train again if an approximate method gives up or its audit fails.")
    ] = False


@dataclass(frozen=True)
class Filed:
    """What a request says besides, for the law and for those who decide and follow it."""

    regulation: Annotated[str | None, typer.Option(help="The law or contract; GDPR Art. 17 when absent.")] = None
    legal_deadline: Annotated[
        str | None,
        typer.Option(metavar="DATE", help="By when it must be done: 2026-12-24, or with a time; 30 days when absent."),
    ] = None
    approve_first: Annotated[bool, typer.Option("--approve-first", help="Do nothing until `lethe erase approve`.")] = (
        False
    )
    ground: Annotated[
        str | None,
        typer.Option(
            help="By GDPR Art. 17(1): not_necessary, withdrawal, objection, unlawful, legal_obligation, child or other."
        ),
    ] = None
    ref: Annotated[str | None, typer.Option(help="Its name elsewhere, like the number of a ticket.")] = None
    note: Annotated[str | None, typer.Option(help="The first note, for those who decide.")] = None
    callback: Annotated[
        list[str] | None, typer.Option(metavar="URL", help="Post each change there; repeat for several.")
    ] = None
    callback_secret_file: Annotated[
        Path | None, typer.Option(help="A file with the secret (whsec_…) that posts are signed with.")
    ] = None
    reward: Annotated[
        float | None, typer.Option(help="What each round of its work pays, where clients are divided among jobs.")
    ] = None


@app.callback()
@with_groups
def erase(
    context: typer.Context,
    wanted: Wanted,
    filed: Filed,
    watch: Annotated[bool, typer.Option("--watch", help="Follow the request until it is over.")] = False,
    idempotency_key: Annotated[
        str | None, typer.Option(help="The same request again under the same key files no second one.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Forget clients: no model with their data in it is served or trained on from the fence on."""
    if context.invoked_subcommand is not None:
        return
    from lethe.printing import say

    body = _wanted(wanted) | _filed(filed)
    with connect(context) as coordinator:
        request = coordinator.erasures.file(
            *(wanted.client or ()), federation=wanted.federation, idempotency_key=idempotency_key, **body
        )
        if watch and not json:
            say(f"erasure request {request.id}")
        else:
            _print_request(request.document, json)
        if watch:
            _follow(request, json)


@app.command(**examples("lethe erase preview --client hospital-b", "lethe erase preview --client hospital-b --json"))
@with_groups
def preview(context: typer.Context, wanted: Wanted, json: AsJson = False) -> None:
    """What a request would do and cost, method by method. Changes nothing."""
    from lethe.printing import Column, print_record, print_records, say

    body = _wanted(wanted)
    with connect(context) as coordinator:
        asked = coordinator.erasures.preview(*(wanted.client or ()), federation=wanted.federation, **body)
    found = asked.document
    if json:
        print_record(found, as_json=True)
        return
    columns: dict[str, Column] = {
        "method": "method",
        "guarantee": "guarantee",
        "cohorts": lambda option: len(option["cohorts"]),
        "untouched": "num_cohorts_untouched",
        "rounds": "rounds_to_redo",
        "updates": "client_updates_to_redo",
        "work": "client_work",
        "bytes": "bytes_to_move",
        "seconds": "estimated_seconds",
        "accuracy at first": "initial_accuracy",
    }
    print_records((option for option in found["options"] if option["applies"]), columns, as_json=False)
    _print_inapplicable(found["options"])
    for option in found["options"]:
        if option["method"] == found["chosen"]:
            cohorts: dict[str, Column] = {
                "run": "run",
                "cohort": "cohort",
                "becomes": "action",
                "rounds": "rounds_to_redo",
                "of the recovery": "recovery_rounds",
                "updates": "client_updates_to_redo",
            }
            print_records(option["cohorts"], cohorts, as_json=False)
    say(f"{wanted.method} would use {found['chosen']}, then the recovery {found['recovery']}")


def _print_inapplicable(options: list[dict[str, Any]]) -> None:
    """Methods with the same reason together: most have it in common."""
    from lethe.printing import print_line

    by_reason: dict[str, list[str]] = {}
    for option in options:
        if not option["applies"]:
            by_reason.setdefault(option["why_not"], []).append(option["method"])
    for reason, methods in by_reason.items():
        print_line(f"not applicable: {', '.join(methods)}: {reason}")
    print_line("")


@app.command(**examples("lethe erase show hospital-b", "lethe erase show 0199d3a2-7a53-7cc0-b7a1-0d7b7e0f3c55"))
def show(context: typer.Context, id: RequestId, json: AsJson = False) -> None:
    """One request: status, deadline, and each cohort that it touches."""
    with connect(context) as coordinator:
        _print_request(coordinator.erasures.get(id).document, json)


@app.command(**examples("lethe erase watch hospital-b", "lethe erase watch 0199d3a2-7a53-7cc0-b7a1-0d7b7e0f3c55"))
def watch(context: typer.Context, id: RequestId, json: AsJson = False) -> None:
    """What happens to a request, until it is over. Code 1 unless it completed."""
    with connect(context) as coordinator:
        _follow(coordinator.erasures.get(id), json)


@app.command(**examples("lethe erase deliveries 0199d3a2-7a53-7cc0-b7a1-0d7b7e0f3c55"))
def deliveries(context: typer.Context, id: RequestId, json: AsJson = False) -> None:
    """What was, or is to be, posted to the request's callbacks."""
    from lethe.printing import Column, print_answers, when

    columns: dict[str, Column] = {
        "change": "type",
        "to": "url",
        "status": "status",
        "attempts": "attempts",
        "next": when("next_attempt_at"),
        "delivered": when("delivered_at"),
        "error": "error",
    }
    with connect(context) as coordinator:
        print_answers(coordinator.erasures.get(id).deliveries(), columns, as_json=json)


def _wanted(wanted: Wanted) -> dict[str, Any]:
    from lethe.sample_numbers import parse_samples

    if not wanted.client:
        raise CommandFailed(
            "nobody to forget",
            next_step="name them: lethe erase --client NAME, or see lethe erase -h",
            exit_code=UNUSABLE,
        )
    body: dict[str, Any] = {"method": wanted.method}
    if wanted.samples is not None:
        if len(wanted.client) > 1:
            raise CommandFailed(
                "--samples are those of one client", next_step="file one request for each", exit_code=UNUSABLE
            )
        body |= {"scope": "samples", "samples": {wanted.client[0]: parse_samples(wanted.samples)}}
    if wanted.param:
        body["params"] = params_of(wanted.param)
    if wanted.recovery_rounds is not None:
        body["recovery_rounds"] = wanted.recovery_rounds
    if wanted.recovery is not None:
        method, *params = wanted.recovery.split(",")
        body["recovery"] = {"method": method, "params": params_of(params)}
    if wanted.approximate:
        body["guarantee"] = "approximate"
    if wanted.or_retrain:
        body["fallback"] = "retrain"
    return body


def _filed(filed: Filed) -> dict[str, Any]:
    body: dict[str, Any] = {"needs_approval": filed.approve_first}
    if filed.regulation:
        body["regulation"] = filed.regulation
    if filed.legal_deadline is not None:
        body["legal_deadline"] = instant_of("--legal-deadline", filed.legal_deadline)
    said = {"ground": filed.ground, "external_ref": filed.ref, "note": filed.note, "reward": filed.reward}
    body |= {name: value for name, value in said.items() if value is not None}
    return body | _callbacks(filed.callback, filed.callback_secret_file)


def params_of(given: list[str] | None) -> dict[str, Any]:
    """Parameters of a method, from NAME=VALUE."""
    return dict(map(_param, given or []))


def instant_of(option: str, text: str) -> str:
    """A day is meant to its end, and a time without an offset in this machine's zone."""
    from datetime import datetime, timedelta

    try:
        instant = datetime.fromisoformat(text)
    except ValueError as error:
        raise CommandFailed(
            f"{option} {text} is no date",
            next_step="write it like 2026-12-24 or 2026-12-24T12:00+01:00",
            exit_code=UNUSABLE,
        ) from error
    if len(text) <= len("2026-12-24"):
        instant += timedelta(days=1, seconds=-1)
    return (instant if instant.tzinfo is not None else instant.astimezone()).isoformat()


def _callbacks(urls: list[str] | None, secret_file: Path | None) -> dict[str, Any]:
    if not urls:
        return {}
    try:
        secret = secret_file.read_text("utf-8").strip() if secret_file is not None else None
    except OSError as error:
        raise CommandFailed(f"cannot read {secret_file}: {error.strerror}", exit_code=UNUSABLE) from error
    return {"callbacks": [{"url": url} | ({"secret": secret} if secret is not None else {}) for url in urls]}


def _param(text: str) -> tuple[str, Any]:
    from json import JSONDecodeError, loads

    name, sign, value = text.partition("=")
    if not name or not sign:
        raise CommandFailed(f"--param {text}", next_step="write it like warmup_rounds=5", exit_code=UNUSABLE)
    try:
        return name, loads(value)
    except JSONDecodeError:
        return name, value


def _print_request(request: dict[str, Any], as_json: bool) -> None:
    from lethe.printing import Column, print_record, print_records, when

    if as_json:
        print_record(request, as_json=True)
        return
    shown = {key: value for key, value in request.items() if key not in ("lines", "exclusions")}
    for name in ("filed_by", "decided_by"):
        shown[name] = named(request.get(name))
    if (extension := request.get("extension")) is not None:
        shown["extension"] = f"by {named(extension['by'])}: {extension['reason']}"
    print_record({**shown, "subjects": ", ".join(request["subjects"])}, as_json=False)
    columns: dict[str, Column] = {
        "run": "run",
        "cohort": "cohort",
        "becomes": "action",
        "epoch": lambda line: f"{line['epoch_before']} → {line['epoch_after']}",
        "round": lambda line: f"{line['round_now']}/{line['target_round']}",
        "clean": when("clean_at"),
        "done": when("done_at"),
    }
    if request["lines"]:
        print_records(request["lines"], columns, as_json=False)
    ledgers: dict[str, Column] = {
        "client": "client",
        "samples left out": "num_samples",
        "in its ledger": when("acknowledged_at"),
        "problem": "problem",
    }
    if request["exclusions"]:
        print_records(request["exclusions"], ledgers, as_json=False)


def named(actor: dict[str, Any] | None) -> str | None:
    """Who filed or decided, in a few words."""
    if actor is None:
        return None
    return f"{actor['person'] or actor['label'] or actor['credential_id']} ({actor['role']})"


def _follow(request: Erasure, as_json: bool) -> None:
    from json import dumps

    from lethe.printing import say

    for event in request.follow():
        if as_json:
            print(dumps(event.document), flush=True)
        else:
            said = "  ".join(f"{key} {value}" for key, value in event.data.items() if value is not None)
            print(f"{event.document['at'][11:23]}  {event.type:<22} {said}", flush=True)
    status = request.refresh().status
    if status != "completed":
        raise CommandFailed(f"the request is {status}", next_step=f"lethe erase show {request.id}")
    if not as_json:
        say(f"completed; its certificate: lethe certificates get {request.id} -o certificate.json")
