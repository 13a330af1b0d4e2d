"""`lethe incentives`: who serves which of several jobs, how the game about it goes, and what clients earn and pay."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from lethe.target import AsJson, connect, examples

app = typer.Typer(no_args_is_help=True, help="Incentives: how clients are divided among jobs, and what they earn.")

Federation = Annotated[
    str | None, typer.Option("--federation", "-f", help="Name or id; may be left out when there is only one.")
]


@app.command(
    **examples(
        "lethe incentives preview --federation hospitals",
        "lethe incentives preview game.yaml --plot shares.svg",
    )
)
def preview(
    context: typer.Context,
    file: Annotated[
        Path | None, typer.Argument(help="Jobs and clients to play with; else the federation's own.")
    ] = None,
    federation: Federation = None,
    strategy: Annotated[
        str | None, typer.Option(help="game, random, round_robin or greedy; the federation's own when left out.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the shares over time into this file, as SVG.")] = None,
    json: AsJson = False,
) -> None:
    """How clients would be divided if a period began now: shares over time, utilities, equilibrium. Changes nothing."""
    from lethe.incentive_preview import draw, from_file, play
    from lethe.periods import setting_of
    from lethe.printing import print_records, say

    if file is not None:
        setting = from_file(file, strategy)
    else:
        with connect(context) as client:
            setting = setting_of(client.incentives.preview(strategy=strategy, federation=federation))
    found = play(setting)
    over_time, in_the_end = list(found.over_time()), list(found.in_the_end())
    print_records(over_time, {name: name for name in over_time[0]}, as_json=json)
    print_records(in_the_end, {name: name for name in in_the_end[0]}, as_json=json)
    for line in found.lines():
        say(line)
    for name, names in found.served():
        say(f"{name}: {len(names)} clients ({', '.join(names[:10])}{', …' if len(names) > 10 else ''})")
    say(found.verdict())
    if plot is not None:
        plot.write_text(draw(found), "utf-8")
        say(f"drawn: {plot}")


@app.command(
    "set", **examples("lethe incentives set game", "lethe incentives set none", "lethe incentives set game i.yaml")
)
def set_(
    context: typer.Context,
    strategy: Annotated[str, typer.Argument(help="game, random, round_robin, greedy, or none.")],
    file: Annotated[
        Path | None, typer.Argument(help="What jobs pay and work costs, as YAML; else the defaults.")
    ] = None,
    federation: Federation = None,
    json: AsJson = False,
) -> None:
    """Divide a federation's clients among jobs in this way from now on: a new period begins."""
    from lethe.incentive_preview import read_incentives
    from lethe.printing import print_record

    allocation = None if strategy == "none" else strategy
    incentives = None if file is None else read_incentives(file)
    with connect(context) as client:
        changed = client.incentives.set(allocation, incentives=incentives, federation=federation)
    print_record(changed.document, as_json=json)


@app.command(**examples("lethe incentives periods", "lethe incentives periods --json | head -1"))
def periods(context: typer.Context, federation: Federation = None, json: AsJson = False) -> None:
    """How clients were divided, the newest period first."""
    from collections import Counter

    from lethe.printing import Column, print_answers, when

    def served(period: Any) -> str:
        names = {job["id"]: job["name"] for job in period["jobs"]}
        return ", ".join(f"{names[job]}: {num}" for job, num in Counter(period["serves"].values()).items())

    columns: dict[str, Column] = {
        "period": "number",
        "begun": when("begun_at"),
        "strategy": "strategy",
        "clients": served,
        "settled": "is_settled",
        "total utility": "total_utility",
    }
    with connect(context) as client:
        print_answers(client.incentives.periods(federation=federation), columns, as_json=json)


@app.command(**examples("lethe incentives ledger", "lethe --token-file a.token incentives ledger --own"))
def ledger(
    context: typer.Context,
    federation: Federation = None,
    own: Annotated[bool, typer.Option("--own", help="Your own part, with a client's token.")] = False,
    json: AsJson = False,
) -> None:
    """What each client earned and paid so far; `--json`: entry by entry."""
    from lethe.printing import print_answers, print_records

    with connect(context) as client:
        entries = client.incentives.own_ledger() if own else client.incentives.ledger(federation=federation)
        if json:
            print_answers(entries, {}, as_json=True)
            return
        totals: dict[str, dict[str, Any]] = {}
        for entry in entries:
            one = totals.setdefault(entry.client_name, {"client": entry.client_name, "earned": 0.0, "paid": 0.0})
            one["earned" if entry.kind == "reward" else "paid"] += sum(entry.amounts.values())
    print_records(
        totals.values(),
        {"client": "client", "earned": "earned", "paid": "paid", "left": lambda one: one["earned"] - one["paid"]},
        as_json=False,
    )
