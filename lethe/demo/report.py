"""What the demo prints at its end: which cohorts were touched, accuracies, the certificate, and where to look next."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from lethe.demo.story import LEAVER, RECOVERY_ROUNDS, Outcome
from lethe.erasure_effects import ErasureEffect, accuracy
from lethe.printing import cell, new_table


def print_outcome(console: Console, outcome: Outcome) -> None:
    table = new_table("run", "cohort", "what became of it", "accuracy before", "right after", "after recovery")
    for run, cohorts in outcome.effects.items():
        for one in cohorts:
            if one.action != "untouched":
                accuracies = (_shown(accuracy(found)) for found in (one.before, one.first_clean, one.now))
                table.add_row(cell(run), cell(one.cohort), cell(one.action), *accuracies)
    console.print(table)
    for line in _sentences(outcome):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def print_where_next(console: Console, outcome: Outcome, seconds: float) -> None:
    lines = [
        "",
        f"Done in {seconds:.0f} s: {LEAVER} is forgotten, and nothing was lost with the killed coordinator.",
        "Where to look next:",
    ]
    if outcome.kept_in is not None:
        port = outcome.url.rpartition(":")[2]
        lines += [
            f"  these runs       lethe serve --home {outcome.kept_in / 'coordinator'} --port {port}",
            f"                   then {outcome.url}/ in a browser, with the token in",
            f"                   {outcome.kept_in}/coordinator/admin.token; or in another terminal:",
            f"                   export LETHE_URL={outcome.url}",
            f"                   export LETHE_TOKEN_FILE={outcome.kept_in}/coordinator/admin.token",
            "                   lethe erase list; lethe checkpoints list tree; lethe runs logs clusters",
            f"  the certificate  lethe verify {outcome.kept_in}/certificate.json --key {outcome.kept_in}/lethe.pub.pem",
            f"  the logs         {outcome.kept_in}",
        ]
    else:
        lines += ["  in a browser     lethe demo --open shows these runs on the dashboard; --keep keeps the data"]
    lines += [
        "  your own         lethe up, then http://127.0.0.1:8440/ for the dashboard",
        "                   lethe federations create, clients add, worker, runs create, erase: each has --help",
        "  read             README.md (a tour), docs/erasure.md, docs/run-file.md, docs/architecture.md",
    ]
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def print_tails(console: Console, directory: Path) -> None:
    for log in sorted(directory.glob("*.log")):
        console.print(f"--- the end of {log.name}", highlight=False, markup=False)
        for line in log.read_text("utf-8", errors="replace").splitlines()[-12:]:
            console.print("    " + line, highlight=False, markup=False)


def _sentences(outcome: Outcome) -> list[str]:
    untouched = [one for cohorts in outcome.effects.values() for one in cohorts if one.action == "untouched"]
    request, report = outcome.request, outcome.replay.report
    return [
        f"untouched: {len(untouched)} cohorts serve the same bytes as before ({', '.join(_names(untouched))})",
        f"method: {request.method} became {request.chosen}; {RECOVERY_ROUNDS} rounds of recovery",
        "certificate: " + "; ".join(f"{one.name} ok" for one in outcome.verdict.checks if one.ok),
        f"replay: {report.replayed} of {report.total} steps recomputed, same digests ({outcome.replay.verdict})",
    ]


def _names(cohorts: list[ErasureEffect]) -> list[str]:
    names = [one.cohort for one in cohorts]
    return names if len(names) <= 4 else [*names[:3], "…"]


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
