"""The report of `lethe bench selection`: for each data set a table of accuracies and paired differences, and curves."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.plots import Bars, Curves, Line, bar
from benchmarks.report import Report, Section, Table, spread
from benchmarks.selection_scenarios import Preset, calibration_epochs

BASELINE: Final = "uniform"
T_95: Final = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
)  # fmt: skip
"""Two-sided 95 % quantiles of Student's t by degrees of freedom, from 1."""
PAPER: Final = Table(
    "What the paper says (its figures 3 and 5 have curves and no table)",
    ["data set", "unlearning rounds", "k-center against random", "DQN against both"],
    [
        ["MNIST", "40 (DQN: 20)", "above", "above"],
        ["Fashion-MNIST", "40 (DQN: 20)", "above", "above"],
        ["CIFAR-10", "40 (DQN: 20)", "above; all near 30 %", "below; all near 30 %"],
    ],
)


@dataclass(frozen=True)
class Outcome:
    dataset: str
    policy: str
    seed: int
    curve: tuple[tuple[int, float, float], ...]
    """(round, accuracy, client-seconds since the erasure)."""

    @property
    def final(self) -> float:
        return self.curve[-1][1]

    @property
    def mean(self) -> float:
        """Over the rounds that clients calibrated: how soon the model is good again."""
        return statistics.fmean(accuracy for _, accuracy, _ in self.curve[1:])

    @property
    def client_s(self) -> float:
        return self.curve[-1][2]


ByPolicy = Mapping[str, Sequence[Outcome]]


def paired(ours: Sequence[Outcome], others: Sequence[Outcome], figure: Callable[[Outcome], float]) -> list[float]:
    """Differences in points, seed by seed."""
    other = {one.seed: figure(one) for one in others}
    return [100 * (figure(one) - other[one.seed]) for one in ours if one.seed in other]


def interval(differences: Sequence[float]) -> str:
    """The mean and its 95 % interval by Student's t."""
    if not differences:
        return "–"
    mean = statistics.fmean(differences)
    if len(differences) < 2:
        return f"{mean:+.2f}"
    quantile = T_95[len(differences) - 2] if len(differences) - 2 < len(T_95) else 2.0
    half = quantile * statistics.stdev(differences) / math.sqrt(len(differences))
    return f"{mean:+.2f} [{mean - half:+.2f}, {mean + half:+.2f}]"


def report_of(outcomes: Sequence[Outcome], preset: Preset, command: str) -> Report:
    groups: dict[str, dict[str, list[Outcome]]] = {}
    for one in sorted(outcomes, key=lambda one: (one.dataset, one.seed)):
        groups.setdefault(one.dataset, {}).setdefault(one.policy, []).append(one)
    introduction = [
        f"A hundred clients with at most {preset.samples} samples, four fifths of them of one class, train "
        f"{preset.rounds} rounds of ten clients drawn by lot ({preset.epochs} epochs, learning rate "
        f"{preset.learning_rate:g}, batches of {preset.batch_size}). One client is erased by FedEraser: for each "
        "stored round ten of the ninety-nine others, selected by the policy, calibrate for "
        f"{calibration_epochs(preset)} epochs. The first round is applied as it is stored.",
        "All policies of a seed start from the same model and history, so differences are paired by seed; brackets are "
        "95 % intervals. Accuracy is on test samples that no policy was rewarded for. A client takes a virtual second "
        "for an epoch, and profiles count.",
        f"`dqn` starts from a network that was pre-trained in {preset.episodes} simulated trainings of "
        f"{preset.pretraining_rounds} rounds, with other seeds: other clients, other samples, other weights.",
    ]
    return Report(
        title="Who takes part: selection of clients while FedEraser rebuilds a model",
        command=command,
        seeds=sorted({one.seed for one in outcomes}),
        paragraphs=introduction,
        sections=[Section("The paper's figures", (), [PAPER]), *(_section(name, one) for name, one in groups.items())],
    )


def _section(dataset: str, by_policy: ByPolicy) -> Section:
    baseline, k_center = by_policy.get(BASELINE, ()), by_policy.get("k_center", ())
    rows = [
        [
            policy,
            spread((100 * one.final for one in found), 2),
            spread((100 * one.mean for one in found), 2),
            interval(paired(found, baseline, lambda one: one.mean)) if policy != BASELINE else "–",
            interval(paired(found, baseline, lambda one: one.final)) if policy != BASELINE else "–",
            interval(paired(found, k_center, lambda one: one.mean)) if policy != "k_center" else "–",
            spread((one.client_s for one in found), 0),
        ]
        for policy, found in by_policy.items()
    ]
    columns = [
        "policy",
        "accuracy at the end (%)",
        "mean over the rounds (%)",
        "mean, against uniform (points)",
        "end, against uniform",
        "mean, against k_center",
        "client-seconds",
    ]
    means = Bars(
        f"{dataset}: mean accuracy over the rounds",
        "test accuracy (%)",
        list(by_policy),
        {"mean and sd over the seeds": [bar(100 * one.mean for one in found) for found in by_policy.values()]},
    )
    return Section(
        dataset, (), [Table("Accuracy after the erasure", columns, rows)], [_curves(dataset, by_policy), means]
    )


def _curves(dataset: str, by_policy: ByPolicy) -> Curves:
    lines = []
    for policy, found in by_policy.items():
        rounds = [round for round, _, _ in found[0].curve]
        columns = list(zip(*([100 * accuracy for _, accuracy, _ in one.curve] for one in found), strict=True))
        means = [statistics.fmean(column) for column in columns]
        lines.append(Line(policy, rounds, means, [min(c) for c in columns], [max(c) for c in columns]))
    return Curves(f"{dataset}: accuracy while the model is rebuilt", "round", "test accuracy (%)", lines)
