"""The report of `lethe bench incentive`: our figures beside what the paper shows and says."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

from benchmarks.plots import Curves, Line
from benchmarks.report import Report, Section, Table, spread

Row = Mapping[str, Any]
LAST: Final = 300
SAYS: Final = {
    "4a": "the game is best; all strategies are stable within 100 periods",
    "4b": "all four fall with the learning rate",
    "4c": "all four fall with the number of clients",
}
"""What the paper says of its panels; it prints no numbers."""


def report_of(rows: Sequence[Row], middle: Mapping[str, Sequence[float]], command: str, seeds: Sequence[int]) -> Report:
    rewards = list(dict.fromkeys(row["reward"] for row in rows))
    strategies = list(dict.fromkeys(row["strategy"] for row in rows if "strategy" in row))
    return Report(
        "Incentives: an evolutionary game of clients and servers",
        command,
        seeds,
        [
            "Parameters of each seed are drawn in the paper's ranges: three populations of 30 clients with 80 to 120 "
            "samples, three servers that pay 100 to 300. The paper's figures are plots without numbers of which only "
            "trends are stated; they stand beside ours.",
        ],
        [_totals(rows, middle, rewards, strategies), _trends(rows, rewards, strategies), _equilibria(rows, rewards)],
    )


def _totals(
    rows: Sequence[Row], middle: Mapping[str, Sequence[float]], rewards: list[str], strategies: list[str]
) -> Section:
    at = {(r["reward"], r["strategy"], r["period"], r["seed"]): r["total_utility"] for r in rows if "period" in r}
    seeds = sorted({seed for *_, seed in at})
    periods = sorted({period for *_, period, _ in at})
    table, wins, plots = [], [], []
    for reward in rewards:
        ends = {s: [at[reward, s, LAST, seed] for seed in seeds] for s in strategies}
        table.append([reward, *(spread(ends[s], 0) for s in strategies), SAYS["4a"]])
        others = [s for s in strategies if s != "game"]
        won = [sum(a > b for a, b in zip(ends["game"], ends[s], strict=True)) for s in others]
        best = sum(all(g > ends[s][n] for s in others) for n, g in enumerate(ends["game"]))
        wins.append([reward, *(f"{num} of {len(seeds)}" for num in won), f"{best} of {len(seeds)}"])
        lines = [
            Line(s, periods, [statistics.fmean(at[reward, s, t, seed] for seed in seeds) for t in periods])
            for s in strategies
        ]
        plots.append(Curves(f"Fig. 4(a), reward {reward}: mean over seeds", "period", "total utility", lines))
    moments = (0, 50, 100, 200, 300)
    in_the_middle = [[reward, *(round(curve[t]) for t in moments)] for reward, curve in middle.items()]
    return Section(
        "Total utility over the periods",
        ["In the middle of the ranges the pools are 100, 200 and 300: with equal ones nothing would move."],
        [
            Table(f"Total utility at period {LAST}", ["reward", *strategies, "the paper says"], table),
            Table("Seeds in which the game is above", ["reward", *strategies[1:], "all three"], wins),
            Table("The game in the middle of the ranges", ["reward", *(f"t = {t}" for t in moments)], in_the_middle),
        ],
        plots,
    )


def _trends(rows: Sequence[Row], rewards: list[str], strategies: list[str]) -> Section:
    tables, plots = [], []
    for figure, key, label in (("4b", "learning_rate", "total utility at t = 50"),
                               ("4c", "clients", "utility of a client at t = 50")):  # fmt: skip
        own = [row for row in rows if row.get("figure") == figure]
        values = sorted({row[key] for row in own})
        found = {(r["reward"], r["strategy"], r[key]): r["mean"] for r in own}
        body = [
            [f"{reward}, {s}", *(f"{found[reward, s, v]:.1f}" for v in values)]
            for reward in rewards
            for s in strategies
        ]
        title = f"Fig. {figure[0]}({figure[1]}): {label}; the paper says that {SAYS[figure]}"
        tables.append(Table(title, ["reward, strategy", *(f"{key} {v:g}" for v in values)], body))
        for reward in rewards:
            lines = [Line(s, values, [found[reward, s, v] for v in values]) for s in strategies]
            plots.append(Curves(f"Fig. {figure[0]}({figure[1]}), reward {reward}", key.replace("_", " "), label, lines))
    return Section("Learning rates and numbers of clients", (), tables, plots)


def _equilibria(rows: Sequence[Row], rewards: list[str]) -> Section:
    body = []
    for reward in rewards:
        own = [row for row in rows if row.get("figure") == "equilibrium" and row["reward"] == reward]
        settled = [row for row in own if row["is_settled"]]
        median = statistics.median(row["periods"] for row in settled) if settled else None
        spreads = [row["spread"] for row in own]
        figures = f"{statistics.median(spreads):.2g}, at most {max(spreads):.2g}"
        body.append([reward, f"{len(settled)} of {len(own)}", median, figures, spread([r["total"] for r in own], 0)])
    columns = ["reward", "settled", "periods (median)", "spread of utilities", "total utility in the end"]
    said = (
        "Settled: no share moves by more than 1e-6 in a period, and over the servers that a population serves "
        "utilities are equal to the same tolerance. Learning rate 0.005, at most 3000 periods. The spread is the "
        "largest difference of utilities between servers that a population serves, in the end."
    )
    return Section("Equilibrium", [said], [Table("Where the game ends", columns, body)])
