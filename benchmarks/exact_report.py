"""The report of `lethe bench exact`: a section for every data set of a variant, or of a sweep over variants."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from benchmarks.exact_outcomes import Outcome, Recovery
from benchmarks.exact_setups import DATASETS
from benchmarks.exact_variants import FAMILIES, NAMED
from benchmarks.plots import Bars, Curves, Line, bar
from benchmarks.report import Report, Section, Table, spread

SHOWN_BEFORE: Final = 20
"""Rounds before the erasure that the plots of a single one show."""
INTRODUCTION: Final = [
    "Ten clients train together; client i holds mostly class i. Then client 1 is erased. Counted are the rounds from "
    "there until the served model has the threshold's test accuracy again; it is judged after each of them, so 1 is "
    "the least. –: it was not reached. The test set has the leavers' classes too.",
    "`retrain` goes back to the initial model. `bmt` averages the models that each client trained alone. `mmt` "
    "averages the largest parts of an influence tree without the leaver. All are exact: nothing of the leaver is in "
    "the new model.",
    "Weight decay is 0. The paper prints 0.1, with which its thresholds are out of reach here after an erasure "
    "(variant weight-decay-0.1). Its other settings are kept.",
    "Plots show the mean over the seeds and their range; a seed ends where it was stopped.",
]
ACCURACIES: Final = ("accuracy before (%)", "of the first clean model (%)", "at the end (%)")
FIGURES: Final = ("rounds", "each seed", *ACCURACIES)
ByMethod = Mapping[str, Sequence[Outcome]]


def report_of(outcomes: Sequence[Outcome], command: str) -> Report:
    sections = []
    for family, of_family in _grouped(outcomes, lambda one: NAMED[one.cell.variant].family).items():
        for dataset, found in _grouped(of_family, lambda one: one.cell.dataset).items():
            if FAMILIES[family].parameter is None:
                by_variant = _grouped(found, lambda one: one.cell.variant)
                sections += [_variant(dataset, name, _by_method(played)) for name, played in by_variant.items()]
            else:
                main = [one for one in outcomes if (one.cell.variant, one.cell.dataset) == ("main", dataset)]
                sections.append(_sweep(family, dataset, main, found))
    return Report(
        title="Exact unlearning: rounds until the model is back",
        command=command,
        seeds=sorted({outcome.cell.seed for outcome in outcomes}),
        paragraphs=INTRODUCTION,
        sections=sections,
    )


def _grouped(outcomes: Sequence[Outcome], key: Callable[[Outcome], str]) -> dict[str, list[Outcome]]:
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(key(outcome), []).append(outcome)
    return groups


def _by_method(outcomes: Sequence[Outcome]) -> ByMethod:
    return _grouped(outcomes, lambda one: one.cell.method)


def _variant(dataset: str, name: str, by_method: ByMethod) -> Section:
    named, title = NAMED[name], f"{dataset}, {name}"
    paragraphs = [FAMILIES[named.family].about, *([DATASETS[dataset].note] if DATASETS[dataset].note else [])]
    if not named.variant.until_back:
        return Section(title, paragraphs, [_course_table(dataset, by_method)], [_course(dataset, title, by_method)])
    paper = DATASETS[dataset].paper if name == "main" else {}
    table = Table(
        f"Rounds to {_threshold(dataset)}, mean ± sd",
        ["method", *FIGURES, "paper"],
        [[method, *_figures(found), paper.get(method)] for method, found in by_method.items()],
    )
    ours = [bar(one.recoveries[0].rounds_to_threshold for one in found) for found in by_method.values()]
    theirs = [(float(paper[method]), 0.0) if method in paper else None for method in by_method]
    series = {"ours (mean, sd)": ours, "paper": theirs} if paper else {"ours (mean, sd)": ours}
    bars = Bars(f"{title}: rounds to the threshold", "rounds", list(by_method), series)
    return Section(title, paragraphs, [table], [_around(dataset, title, by_method), bars])


def _sweep(family: str, dataset: str, main: Sequence[Outcome], outcomes: Sequence[Outcome]) -> Section:
    """All values of the parameter side by side; that of the main experiment first, if it was run too."""
    about = FAMILIES[family]
    by_value = _grouped(outcomes, lambda one: NAMED[one.cell.variant].value)
    methods = list(_by_method(outcomes))
    if about.main_value is not None and main:
        by_value = {about.main_value: [one for one in main if one.cell.method in methods], **by_value}
    cells = {value: _by_method(found) for value, found in by_value.items()}
    table = Table(
        f"After the first erasure: rounds to {_threshold(dataset)}, mean ± sd",
        [about.parameter or "", "method", *FIGURES],
        [
            [value, method, *_figures(found)]
            for value, by_method in cells.items()
            for method, found in by_method.items()
        ],
    )
    series = {
        method: [
            bar(one.recoveries[0].rounds_to_threshold for one in by_method.get(method, ()))
            for by_method in cells.values()
        ]
        for method in methods
    }
    title = f"{dataset}, {family}"
    bars = Bars(f"{title}: rounds to the threshold", "rounds", list(cells), series, about.parameter)
    return Section(title, [about.about], [table], [bars])


def _figures(outcomes: Sequence[Outcome]) -> list[str]:
    """What FIGURES names, of the first erasure."""
    firsts = [one.recoveries[0] for one in outcomes]
    rounds = [one.rounds_to_threshold for one in firsts]
    return [
        spread(rounds),
        ", ".join("–" if number is None else str(number) for number in rounds),
        *_accuracies(firsts),
    ]


def _accuracies(recoveries: Sequence[Recovery]) -> list[str]:
    """What ACCURACIES names."""
    return [
        spread(_percent(one.accuracy_before) for one in recoveries),
        spread(_percent(one.accuracies[0]) for one in recoveries),
        spread(_percent(one.accuracy_after) for one in recoveries),
    ]


def _course_table(dataset: str, by_method: ByMethod) -> Table:
    """What each erasure cost, one row for each of them."""
    rows = []
    for method, found in by_method.items():
        for number, recoveries in enumerate(zip(*(one.recoveries for one in found), strict=True), start=1):
            rounds = spread(one.rounds_to_threshold for one in recoveries)
            rows.append([method, number, rounds, *_accuracies(recoveries)])
    columns = ["method", "erasure", "rounds", *ACCURACIES]
    return Table(f"After each erasure: rounds to {_threshold(dataset)}, mean ± sd", columns, rows)


def _course(dataset: str, title: str, by_method: ByMethod) -> Curves:
    """The whole of it, with whatever happened."""
    played = next(iter(by_method.values()))[0]
    stretch = played.cell.scenario["run"]["stop"]["rounds"] // (1 + len(played.recoveries))
    script = played.cell.scenario["script"]
    joins = [float(event.get("at_s", event.get("after_round"))) for event in script if "join" in event]
    erasures = [float(stretch * number) for number in range(1, len(played.recoveries) + 1)]
    return Curves(
        f"{title}: accuracy",
        "rounds",
        "test accuracy (%)",
        [_mean(method, [_whole(one, stretch) for one in found]) for method, found in by_method.items()],
        {"erasure": erasures, **({"a client joins": joins} if joins else {})},
        ("threshold", 100 * DATASETS[dataset].threshold),
    )


def _around(dataset: str, title: str, by_method: ByMethod) -> Curves:
    return Curves(
        f"{title}: accuracy around the erasure",
        "rounds since the erasure",
        "test accuracy (%)",
        [_mean(method, [_last_and_first(one) for one in found]) for method, found in by_method.items()],
        {"erasure": 0.0},
        ("threshold", 100 * DATASETS[dataset].threshold),
    )


Points = Mapping[tuple[int, int], float | None]
"""Accuracies by their round and, where a round has two models, by their order."""


def _whole(outcome: Outcome, stretch: int) -> Points:
    """Each stretch begins with the model before its first round: the initial one, or the first clean one."""
    stretches = [outcome.trained, *(recovery.accuracies for recovery in outcome.recoveries)]
    return {
        (place * stretch + number, place): accuracy
        for place, accuracies in enumerate(stretches)
        for number, accuracy in enumerate(accuracies)
    }


def _last_and_first(outcome: Outcome) -> Points:
    before = outcome.trained[-SHOWN_BEFORE:]
    shown = [*before, *outcome.recoveries[0].accuracies]
    return {(number, 0): accuracy for number, accuracy in enumerate(shown, start=-len(before))}


def _mean(method: str, runs: Sequence[Points]) -> Line:
    """Over the seeds, and their range; a seed that has ended is left out from there on."""
    values: dict[tuple[int, int], list[float]] = {}
    for points in runs:
        for place, accuracy in points.items():
            if accuracy is not None:
                values.setdefault(place, []).append(100 * accuracy)
    places = sorted(values)
    return Line(
        method,
        [number for number, _ in places],
        [statistics.fmean(values[place]) for place in places],
        [min(values[place]) for place in places],
        [max(values[place]) for place in places],
    )


def _threshold(dataset: str) -> str:
    return f"{DATASETS[dataset].threshold:.0%} test accuracy"


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value
