"""`lethe acts`: who did what, when and from where; and an export that `lethe verify` checks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from lethe.failures import CommandFailed
from lethe.target import AsJson, connect, examples

if TYPE_CHECKING:
    from lethe.client.views import RecordedAct

app = typer.Typer(no_args_is_help=True, help="The log of acts: who did what, when and from where.")

Federation = Annotated[str | None, typer.Option("--federation", "-f", help="Name or id; the only one when absent.")]
FOLLOW_EVERY_S = 1.0


@app.command(
    "list",
    **examples(
        "lethe acts list",
        "lethe acts list --last 20 --federation cardiology",
        "lethe acts list --about 0199d3a2-7a53-7cc0-b7a1-0d7b7e0f3c55 --json",
    ),
)
def list_(
    context: typer.Context,
    federation: Federation = None,
    last: Annotated[int, typer.Option(min=1, help="So many, the newest last.")] = 50,
    about: Annotated[
        str | None, typer.Option(metavar="ID", help="Only about this run, erasure request or credential.")
    ] = None,
    json: AsJson = False,
) -> None:
    """The newest acts of a federation."""
    from itertools import islice

    from lethe.printing import print_records

    with connect(context) as coordinator:
        size = min(last, 200)
        found = coordinator.acts.list(federation=federation, about=about, newest_first=True, page_size=size)
        newest = [act.document for act in islice(found, last)][::-1]
    print_records(newest if json else map(summary, newest), COLUMNS, as_json=json)


@app.command(**examples("lethe acts follow", "lethe acts follow --after 120 --json"))
def follow(
    context: typer.Context,
    federation: Federation = None,
    after: Annotated[
        int | None, typer.Option(min=0, help="Begin after this entry; with what comes, when absent.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Acts as they are done, until you stop it."""
    import time
    from json import dumps

    with connect(context) as coordinator:
        of = coordinator.federations.get(federation).id
        if after is None:
            newest = next(coordinator.acts.list(federation=of, newest_first=True, page_size=1), None)
            after = newest.entry.seq if newest is not None else 0
        while True:
            for act in coordinator.acts.list(federation=of, after=after):
                after, shown = act.entry.seq, act.document
                line = dumps(shown) if json else "  ".join(str(one) for one in summary(shown).values() if one)
                print(line, flush=True)
            time.sleep(FOLLOW_EVERY_S)


@app.command(
    **examples(
        "lethe acts export -o acts.jsonl",
        "lethe acts export --format csv -o acts.csv",
        "lethe verify acts.jsonl --key lethe.pub.pem",
    )
)
def export(
    context: typer.Context,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write it.")],
    federation: Federation = None,
    format: Annotated[
        Literal["jsonl", "csv"], typer.Option(help="jsonl can be verified; csv is for spreadsheets.")
    ] = "jsonl",
    json: AsJson = False,
) -> None:
    """All acts that are kept, to a file for its reader alone. As JSON lines it ends with the signed head, so that
    whoever has the issuer's public key finds every entry that was changed, removed or moved."""
    from itertools import takewhile

    from lethe.printing import print_record

    part = output.with_name(output.name + ".part")
    with connect(context) as coordinator:
        of = coordinator.federations.get(federation).id
        head = coordinator.acts.head(federation=of)
        seq = _last_of(head)
        acts = takewhile(lambda act: act.entry.seq <= seq, coordinator.acts.list(federation=of))
        with part.open("w", encoding="utf-8", newline="") as file:
            part.chmod(0o600)
            num_acts = _write_csv(file, acts) if format == "csv" else _write_lines(file, acts, head)
    part.replace(output)
    print_record({"file": str(output), "acts": num_acts, "through": seq}, as_json=json)


COLUMNS: dict[str, Any] = {
    name: name for name in ("seq", "when", "act", "role", "who", "from", "whom", "about", "words")
}


def summary(act: dict[str, Any]) -> dict[str, Any]:
    """One act in a line: what nobody can read any more says so."""
    entry = act["entry"]
    said: dict[str, list[dict[str, str] | None]] = {"who": [], "whom": [], "words": []}
    for part, words in zip(entry["parts"], act["opened"], strict=True):
        said[part["says"]].append(words["content"] if words is not None else None)

    def text(says: str, field: str) -> str:
        return ", ".join(one[field] if one is not None else "(erased)" for one in said[says])

    about, gap = entry["about"], entry["gap"]
    words = text("words", "text")
    if gap is not None:
        words = f"entries {gap['first']} to {gap['last']} were lost with a database"
    return {
        "seq": entry["seq"],
        "when": entry["at"][:19].replace("T", " "),
        "act": entry["act"],
        "role": entry["role"],
        "who": text("who", "name") or text("who", "credential"),
        "from": text("who", "from"),
        "whom": text("whom", "name"),
        "about": f"{about['kind']} {about['id']}" if about is not None else "",
        "words": words,
    }


def _last_of(head: bytes) -> int:
    """The entry that a signed head is of."""
    import json
    from base64 import b64decode

    return int(json.loads(b64decode(json.loads(head)["payload"]))["seq"])


def _write_lines(file: Any, acts: Iterator[RecordedAct], head: bytes) -> int:
    from services.audit.acts import to_line
    from services.wire.v1 import acts as messages

    num_acts = 0
    for act in acts:
        try:  # with every field that was signed, and no others
            file.write(to_line(messages.RecordedAct.model_validate(act.document, strict=False)).decode())
        except ValueError as error:
            raise CommandFailed(f"the coordinator's answer cannot be read: {error}") from error
        num_acts += 1
    file.write(head.decode())
    return num_acts


def _write_csv(file: Any, acts: Iterator[RecordedAct]) -> int:
    import csv

    rows = [[defused(value) for value in summary(act.document).values()] for act in acts]
    csv.writer(file).writerows([list(COLUMNS), *rows])
    return len(rows)


def defused(value: Any) -> Any:
    """A spreadsheet takes a text that begins like this for a formula, and would run it."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r", "\n")) else value
