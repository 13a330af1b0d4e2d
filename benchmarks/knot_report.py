"""The report of `lethe bench knot`: for each data set and number of erased clients a table, curves and bars."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Final

from benchmarks.knot_outcomes import Outcome
from benchmarks.knot_scenarios import DATASETS, Setup
from benchmarks.plots import Bars, Curves, Line, bar
from benchmarks.report import Report, Section, Table, spread

BASELINE: Final = "fedbuff"
ByMethod = Mapping[str, Sequence[Outcome]]
PAPER: Final = Table(
    "The paper's Table II: seconds of FedBuff to the target, and how much less the others need",
    ["method", "CIFAR-10, 75 %", "FEMNIST, 60 %", "Purchase-100, 63.5 %", "Tiny Shakespeare, perplexity 37.5"],
    [
        ["fedbuff", "2036 s", "4272 s", "2381 s", "16293 s"],
        ["rapid", "–", "–", "–", "–"],
        ["federaser", "−2 %", "10 %", "19 %", "–"],
        ["random", "73 %", "45 %", "61 %", "27 %"],
        ["knot", "85 %", "52 %", "64 %", "33 %"],
    ],
)
INTRODUCTION: Final = [
    "Each client has a speed of its own: a task takes 1 s or more, Pareto-distributed with α = 1 and cut at 60 s. "
    "Time is virtual. The erased clients are neither the fastest nor the slowest; what they contributed to goes back "
    "to its newest model without them and trains on. Only the clusters of the leavers do; the others go on. "
    "`rapid` and `federaser` are everybody together, as with `fedbuff`, and their own way of erasing.",
    "Counted is the time from the erasure until the best line (with clusters: the best cluster) reaches the target on "
    "test samples. KNOT waits for everybody once before training begins; its erasures come so much later than the "
    "others', and the table has that time in a column of its own.",
    "Client-seconds are the clients' time behind all updates from the beginning to the target, and (again) behind "
    "those that came after the erasure in the lines that were cut, until these were back at the round that they had.",
    "FEMNIST and Purchase-100 are not at hand: MNIST by real writer and Location-30 stand in for them. The perplexity "
    "is that of the next byte, not of the paper's word pieces.",
]


def report_of(outcomes: Sequence[Outcome], command: str) -> Report:
    groups: dict[str, dict[str, dict[str, list[Outcome]]]] = {}
    for outcome in outcomes:
        cell = outcome.cell
        by_method = groups.setdefault(cell.dataset, {}).setdefault(cell.variant, {})
        by_method.setdefault(cell.method, []).append(outcome)
    sections = [Section("The paper's figures", (), [PAPER])]
    for dataset, by_variant in groups.items():
        sections += [_section(dataset, variant, found) for variant, found in by_variant.items()]
        if len(by_variant) > 1:
            sections.append(_effect_of_the_number(dataset, by_variant))
    return Report(
        title="Asynchronous unlearning: time to the target after an erasure",
        command=command,
        seeds=sorted({outcome.cell.seed for outcome in outcomes}),
        paragraphs=INTRODUCTION,
        sections=sections,
    )


def _section(dataset: str, variant: str, by_method: ByMethod) -> Section:
    setup, title = DATASETS[dataset], f"{dataset}, {variant}"
    table = Table(
        f"Virtual seconds from the erasure to {setup.goal}, mean ± sd",
        [
            "method",
            "seconds",
            "each seed",
            "less than fedbuff",
            "profiling before (s)",
            "client-seconds again",
            "in all",
        ],
        [
            [
                method,
                spread(one.to_target_s for one in found),
                ", ".join("–" if one.to_target_s is None else f"{one.to_target_s:.0f}" for one in found),
                saved(found, by_method.get(BASELINE, ())),
                spread(one.erased_s - setup.erased_at_s for one in found),
                spread((one.client_s_redone for one in found), 0),
                spread((one.client_s for one in found), 0),
            ]
            for method, found in by_method.items()
        ],
    )
    times = Bars(
        f"{title}: time to the target",
        "virtual time (s)",
        list(by_method),
        {"mean and sd over the seeds": [bar(one.to_target_s for one in found) for found in by_method.values()]},
        is_logarithmic=True,
    )
    work = Bars(
        f"{title}: clients' work until the target",
        "client-seconds",
        list(by_method),
        {
            "again, in the lines that were cut": [
                bar(one.client_s_redone for one in found) for found in by_method.values()
            ],
            "in all, from the beginning": [bar(one.client_s for one in found) for found in by_method.values()],
        },
    )
    return Section(title, (), [table], [_curves(setup, title, by_method), times, work])


def _curves(setup: Setup, title: str, by_method: ByMethod) -> Curves:
    seed = min(one.cell.seed for found in by_method.values() for one in found)
    shown = {method: one for method, found in by_method.items() for one in found if one.cell.seed == seed}
    ends = [one.served[-1][0] - one.erased_s for method, one in shown.items() if method != "fedavg"]
    is_accuracy = setup.figure == "accuracy"
    scale = 100.0 if is_accuracy else 1.0
    return Curves(
        f"{title}: best line, seed {seed}",
        "virtual time since the erasure (s)",
        "test accuracy (%)" if is_accuracy else "test perplexity",
        [_curve(method, one, scale) for method, one in shown.items()],
        {"erasure": 0.0},
        ("target", scale * setup.target),
        until=1.5 * max(ends) if ends else None,  # synchronous rounds take many times as long
        is_logarithmic=not is_accuracy,
    )


def _curve(method: str, outcome: Outcome, scale: float) -> Line:
    """With clusters the band goes from the worst to the best of them."""
    times = [instant - outcome.erased_s for instant, *_ in outcome.served]
    best = [scale * value for _, value, _ in outcome.served]
    worst = [scale * value for *_, value in outcome.served]
    return Line(method, times, best, worst, best) if worst != best else Line(method, times, best)


def _effect_of_the_number(dataset: str, by_variant: Mapping[str, ByMethod]) -> Section:
    methods = list(dict.fromkeys(method for by_method in by_variant.values() for method in by_method))
    times = {
        variant: [[one.to_target_s for one in by_method.get(method, ())] for method in methods]
        for variant, by_method in by_variant.items()
    }
    title = f"{dataset}: the number of erased clients"
    rows = [[method, *(spread(found[number]) for found in times.values())] for number, method in enumerate(methods)]
    table = Table(f"Virtual seconds to {DATASETS[dataset].goal}, mean ± sd", ["method", *by_variant], rows)
    series = {variant: [bar(values) for values in found] for variant, found in times.items()}
    return Section(
        title, (), [table], [Bars(title, "virtual time to the target (s)", methods, series, is_logarithmic=True)]
    )


def saved(found: Sequence[Outcome], baseline: Sequence[Outcome]) -> str:
    """How much less time than the baseline, of the means over the seeds; a dash where one did not get there."""
    times = [one.to_target_s for one in found if one.to_target_s is not None]
    theirs = [one.to_target_s for one in baseline if one.to_target_s is not None]
    if not theirs or len(times) < len(found) or len(theirs) < len(baseline):
        return "–"
    return f"{1 - statistics.fmean(times) / statistics.fmean(theirs):.0%}"
