"""`lethe erase list`, `approve`, `deny`, `cancel`, `retry`, `extend` and `note`: requests as officers handle them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from lethe.commands.erase import RequestId, instant_of, named
from lethe.commands.option_groups import with_groups
from lethe.target import AsJson, connect, examples

if TYPE_CHECKING:
    from lethe.client.synchronous.erasures import Erasure


@dataclass(frozen=True)
class Shown:
    """Which requests are listed, and in which order."""

    federation: Annotated[str | None, typer.Option("--federation", "-f", help="Only of this one: name or id.")] = None
    status: Annotated[list[str] | None, typer.Option(help="Only requests in this state; repeatable.")] = None
    client: Annotated[str | None, typer.Option(help="Only those about this client.")] = None
    due_before: Annotated[
        str | None, typer.Option(metavar="DATE", help="Only those that are not over and due earlier.")
    ] = None
    awaiting_me: Annotated[bool, typer.Option("--awaiting-me", help="Only those that you may approve now.")] = False
    sort: Annotated[str | None, typer.Option(help="deadline, -deadline, created or -created.")] = None


@with_groups
def list_(context: typer.Context, shown: Shown, json: AsJson = False) -> None:
    """Requests and how far they are, newest first."""
    from lethe.printing import Column, print_answers, when

    columns: dict[str, Column] = {
        "status": "status",
        "clients": lambda request: ", ".join(request["subjects"]),
        "method": lambda request: request["chosen"] or request["method"],
        "days left": "days_left",
        "filed": when("created_at"),
        "by": lambda request: named(request.get("filed_by")),
        "reason": "reason",
        "id": "id",
    }
    wanted: dict[str, Any] = {"federation": shown.federation, "status": shown.status, "subject": shown.client}
    if shown.due_before is not None:
        wanted["due_before"] = instant_of("--due-before", shown.due_before)
    with connect(context) as coordinator:
        found = coordinator.erasures.list(**wanted, sort=shown.sort, awaiting_my_approval=shown.awaiting_me)
        print_answers(found, columns, as_json=json)


def approve(
    context: typer.Context,
    id: RequestId,
    reason: Annotated[str | None, typer.Option(help="Why, for the record.")] = None,
    json: AsJson = False,
) -> None:
    """Carry out a request that awaits approval."""
    _judge(context, id, lambda request: request.approve(reason), json)


def deny(
    context: typer.Context,
    id: RequestId,
    reason: Annotated[str, typer.Option(help="What the requester is told.")],
    json: AsJson = False,
) -> None:
    """Refuse a request that awaits approval."""
    _judge(context, id, lambda request: request.deny(reason), json)


def cancel(context: typer.Context, id: RequestId, json: AsJson = False) -> None:
    """Withdraw a request that awaits approval; after the fence there is no way back."""
    _judge(context, id, lambda request: request.cancel(), json)


def retry(context: typer.Context, id: RequestId, json: AsJson = False) -> None:
    """Look again at a request that requires action, once what its reason names is mended."""
    _judge(context, id, lambda request: request.retry(), json)


def extend(
    context: typer.Context,
    id: RequestId,
    until: Annotated[str, typer.Option(metavar="DATE", help="The new deadline, to the end of that day.")],
    reason: Annotated[str, typer.Option(help="What the requester is told.")],
    json: AsJson = False,
) -> None:
    """Move the legal deadline of a request, once."""
    instant = instant_of("--until", until)
    _judge(context, id, lambda request: request.extend(instant, reason), json)


def note(
    context: typer.Context,
    id: RequestId,
    text: Annotated[str | None, typer.Argument(help="What to write; without it the notes are listed.")] = None,
    json: AsJson = False,
) -> None:
    """Write a note about a request, or list them. Nobody can read them once its client was erased."""
    from lethe.printing import Column, print_answers, print_record, when

    columns: dict[str, Column] = {
        "at": when("at"),
        "by": lambda one: named(one["by"]),
        "note": lambda one: one["text"] if one["text"] is not None else "(erased)",
    }
    with connect(context) as coordinator:
        request = coordinator.erasures.get(id)
        if text is None:
            print_answers(request.notes(), columns, as_json=json)
        else:
            document = request.note(text).document
            print_record(document if json else {**document, "by": named(document["by"])}, as_json=json)


def _judge(context: typer.Context, id: str, verdict: Callable[[Erasure], Erasure], as_json: bool) -> None:
    from lethe.printing import print_record, say

    with connect(context) as coordinator:
        request = verdict(coordinator.erasures.get(id))
    if as_json:
        print_record(request.document, as_json=True)
    else:
        say(f"the request is {request.status}, due {request.legal_deadline:%Y-%m-%d}")


COMMANDS: Final[dict[str, tuple[Callable[..., None], dict[str, Any]]]] = {
    "list": (
        list_,
        examples(
            "lethe erase list",
            "lethe erase list --awaiting-me --sort deadline",
            "lethe erase list --status fenced --status executing --due-before 2026-12-24 --json",
        ),
    ),
    "approve": (
        approve,
        examples("lethe erase approve hospital-b", "lethe erase approve hospital-b --reason 'signed letter'"),
    ),
    "deny": (deny, examples("lethe erase deny 0199d3a2-7a53-7cc0-b7a1-0d7b7e0f3c55 --reason 'litigation hold'")),
    "cancel": (
        cancel,
        examples("lethe erase cancel hospital-b", "lethe erase cancel 0199d3a2-7a53-7cc0-b7a1-0d7b7e0f3c55"),
    ),
    "retry": (
        retry,
        examples("lethe erase retry hospital-b", "lethe erase retry 0199d3a2-7a53-7cc0-b7a1-0d7b7e0f3c55"),
    ),
    "extend": (extend, examples("lethe erase extend hospital-b --until 2027-02-24 --reason 'several runs are paused'")),
    "note": (note, examples("lethe erase note hospital-b 'the letter is in folder 7'", "lethe erase note hospital-b")),
}
"""Commands of `lethe erase`, each with its examples."""
