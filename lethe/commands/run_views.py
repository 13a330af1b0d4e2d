"""`lethe runs topology`, `series` and `grid`: a run as a picture, as curves, as a grid of clients and rounds."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from lethe.commands.checkpoints import RunName
from lethe.target import AsJson, connect, examples

TOPOLOGY_HELP = examples("lethe runs topology digits", "lethe runs topology digits --json | jq .cohorts")
SERIES_HELP = examples("lethe runs series digits", "lethe runs series digits --metric accuracy --points 20")
GRID_HELP = examples("lethe runs grid digits", "lethe runs grid digits --from 90 --to 120")
BARS: Final = "▁▂▃▄▅▆▇█"


def topology(context: typer.Context, run: RunName, json: AsJson = False) -> None:
    """The cohorts of a run as a tree, with who is in them and which erasures fenced them."""
    from lethe.printing import print_record, say

    with connect(context) as client:
        found = client.runs.get(run).topology(members=5).document
    if json:
        print_record(found, as_json=True)
        return
    inside: dict[str | None, list[dict[str, Any]]] = {}
    for cohort in found["cohorts"]:
        inside.setdefault(cohort["parent_id"], []).append(cohort)
    for line in _lines(inside, None, ""):
        print(line)
    say(f"a run of topology {found['kind']} with {len(found['cohorts'])} cohorts")


def series(
    context: typer.Context,
    run: RunName,
    metric: Annotated[
        list[str] | None, typer.Option("--metric", "-m", help="accuracy, loss, seconds, clients, bytes_received, …")
    ] = None,
    points: Annotated[int, typer.Option(min=4, max=5000, help="At most so many of each.")] = 60,
    json: AsJson = False,
) -> None:
    """How figures of a run went, one curve a line."""
    from lethe.printing import Column, print_record, print_records

    with connect(context) as client:
        found = client.runs.get(run).series(*(metric or ()), points=points).document
    if json:
        print_record(found, as_json=True)
        return
    columns: dict[str, Column] = {
        "metric": "name",
        "cohort": "cohort_name",
        "rounds": "total",
        "first": lambda one: one["points"][0]["value"],
        "last": lambda one: one["points"][-1]["value"],
        "curve": lambda one: _curve([point["value"] for point in one["points"]]),
    }
    print_records(found["metrics"], columns, as_json=False)


def grid(
    context: typer.Context,
    run: RunName,
    first: Annotated[int | None, typer.Option("--from", min=1, help="The first round.")] = None,
    last: Annotated[int | None, typer.Option("--to", min=1, help="The last round.")] = None,
    clients: Annotated[int, typer.Option(min=1, max=500, help="At most so many rows.")] = 100,
    json: AsJson = False,
) -> None:
    """Who did what in which round; the newest rounds when none are named."""
    from lethe.printing import print_record, say

    with connect(context) as client:
        found = client.runs.get(run).grid(rounds_from=first, rounds_to=last, clients=clients).document
    if json:
        print_record(found, as_json=True)
        return
    widest = max((len(row["name"]) for row in found["clients"]), default=0)
    for row in found["clients"]:
        print(f"{row['name']:<{widest}}  {''.join(row['cells'])}")
    rounds = found["rounds"]
    if rounds:
        meanings = "; ".join(f"{code} {means}" for code, means in found["codes"].items())
        say(f"rounds {rounds[0]} to {rounds[-1]}; {meanings}")
    if found["left_off"]:
        say(f"{found['left_off']} more clients are not shown")


def _lines(inside: dict[str | None, list[dict[str, Any]]], parent: str | None, indent: str) -> list[str]:
    lines: list[str] = []
    for cohort in inside.get(parent, []):
        names = ", ".join(member["name"] for member in cohort["members"])
        more = f" and {cohort['members_left_off']} more" if cohort["members_left_off"] else ""
        fences = f", fenced {len(cohort['fences'])} times" if cohort["fences"] else ""
        state = f"{cohort['phase']}, epoch {cohort['epoch']}, round {cohort['round']}{fences}"
        lines.append(f"{indent}{cohort['name'] or '(erased)'}  {state}: {names or 'nobody'}{more}")
        lines += _lines(inside, cohort["id"], indent + "  ")
    return lines


def _curve(values: list[float]) -> str:
    low, high = min(values), max(values)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((value - low) * scale)] for value in values)
