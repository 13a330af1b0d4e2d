"""The audit at a client, which alone has the data: accuracy on it, and at the leaver membership inference. Scores only.

Members are the leaver's training samples; its held-out samples are the strangers. The loss attack scores a sample by
its negative loss. The likelihood-ratio attack compares with shadow models trained on random halves of both: from a
model of the run's own line, as the run trains, and with one client's share in each round. The model before the erasure
is attacked in the same way, with the same shadows, and its figures are called `before_…`: what they show is what the
audit is able to see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from services.audit import membership
from services.audit.canaries import success, triggered
from services.audit.predictions import BATCH, Doubles, Labels, classes_of, predict
from services.audit.spec import BEFORE, Audit
from services.core.seeds import derive
from services.data.sources import Dataset
from services.models.weights import load_weights
from services.program.client import TaskInHand
from services.tensors.streams import StoredFile
from services.training.local import TrainingFailed, delta, snapshot, train
from services.training.task import Batch, Classifier, ClientTask, Labelled
from services.wire.v1.runs import ModelSpec


@dataclass(frozen=True)
class Attack:
    """What the figures of all models are made with: the samples, members first, and their shadows if there are any."""

    task: Labelled
    work: Audit
    device: torch.device
    parts: membership.Split
    shadows: tuple[Doubles, npt.NDArray[np.bool_]] | None = None
    """Scaled confidences, and which samples each was trained on: [shadows, samples] both."""

    def figures(self, model: nn.Module) -> dict[str, float]:
        members, member_labels = predict(self.task, model, self.task.train_batches(BATCH, 0), self.device)
        strangers, stranger_labels = predict(self.task, model, self.task.eval_batches(BATCH), self.device)
        known, unknown = _right(members, member_labels), _right(strangers, stranger_labels)
        figures = {**_accuracy("forgotten", members, member_labels), **membership.attack(known, unknown, self.parts)}
        if self.shadows is not None:
            observed = membership.scaled_confidence(np.concatenate([known, unknown]))
            ratios = membership.likelihood_ratios(observed, *self.shadows)
            found = membership.attack(ratios[: len(known)], ratios[len(known) :], self.parts)
            figures |= {name.replace("mia_", "likelihood_"): value for name, value in found.items() if "mia_" in name}
        if self.work.canary is not None:
            inputs, labels = _gather(self.task.eval_batches(BATCH))
            x = triggered(inputs.numpy(), labels.numpy(), self.work.canary)
            figures |= success(classes_of(model, x, self.device), self.work.canary)
        return figures


@dataclass(frozen=True)
class ShadowModels:
    """What shadow models are made of, and where their training starts."""

    spec: ModelSpec
    start: Path | None = None
    """A model of the run's own line; None: from weights of their own."""
    should_stop: Callable[[], bool] | None = None


def carry_out(hand: TaskInHand[Audit]) -> dict[str, float]:
    work = hand.parameters
    start = None if work.shadow_start is None else hand.blobs[work.shadow_start]
    shadows = ShadowModels(hand.spec, start, hand.signals["should_stop"])
    before = None if work.before is None else hand.other_model(work.before)
    return audit(hand.task, hand.model, work, shadows, hand.seed, hand.device, before=before)


def audit(
    task: ClientTask,
    model: nn.Module,
    work: Audit,
    shadow_models: ShadowModels,
    seed: int,
    device: torch.device,
    *,
    before: nn.Module | None = None,
) -> dict[str, float]:
    """Figures of `model`; those that cannot be made are left out, and a verdict then fails."""
    if not isinstance(task, Labelled):
        raise TrainingFailed("this task has no `predict`, which gives logits and right classes; audits need it")
    members, member_labels = predict(task, model, task.train_batches(BATCH, 0), device)
    if work.role == "remaining":
        return _accuracy("remaining", members, member_labels)
    _, stranger_labels = predict(task, model, task.eval_batches(BATCH), device)
    parts = membership.split(member_labels, stranger_labels, derive(seed, "split"))
    shadows = _shadows(task, work, shadow_models, seed, device) if work.num_shadows else None
    attack = Attack(task, work, device, parts, shadows)
    figures = attack.figures(model)
    if before is not None:  # of the same samples
        known = attack.figures(before).items()
        figures |= {BEFORE + name: value for name, value in known if not name.endswith("_samples")}
    return figures


def _accuracy(name: str, log_probabilities: Doubles, labels: Labels) -> dict[str, float]:
    if not len(labels) or not np.isfinite(log_probabilities).all():
        return {f"{name}_samples": 0.0}
    correct = float(np.mean(log_probabilities.argmax(axis=1) == labels))
    loss = -float(np.mean(_right(log_probabilities, labels)))
    return {f"{name}_accuracy": correct, f"{name}_loss": loss, f"{name}_samples": float(len(labels))}


def _right(log_probabilities: Doubles, labels: Labels) -> Doubles:
    found: Doubles = log_probabilities[np.arange(len(labels)), labels]
    return found


def _shadows(
    task: Labelled, work: Audit, made_of: ShadowModels, seed: int, device: torch.device
) -> tuple[Doubles, npt.NDArray[np.bool_]]:
    """Shadows come in pairs trained on complementary halves: every sample is in and out."""
    inputs, labels = _gather([*task.train_batches(BATCH, 0), *task.eval_batches(BATCH)])
    confidences, inside = [], []
    for index in range(work.num_shadows):
        half = np.random.default_rng(derive(seed, "shadow", index // 2)).permutation(len(labels)) % 2 == index % 2
        shadow = task.model(made_of.spec)
        if made_of.start is not None:
            load_weights(shadow, StoredFile(made_of.start))
        rows = torch.from_numpy(np.flatnonzero(half))
        own = Classifier(Dataset(inputs[rows].numpy(), labels[rows].numpy(), inputs[:0].numpy(), labels[:0].numpy()))
        for number in range(work.shadow_rounds):
            base = snapshot(shadow)
            draw = derive(seed, "train", index, number)
            train(own, shadow, work.shadow_training, draw, device, should_stop=made_of.should_stop)
            _add_share(shadow, base, work.shadow_share)
        found, right = predict(task, shadow, [(inputs, labels)], device)
        confidences.append(membership.scaled_confidence(_right(found, right)))
        inside.append(half)
    return np.stack(confidences), np.stack(inside)


@torch.no_grad()
def _add_share(shadow: nn.Module, base: Mapping[str, Tensor], share: float) -> None:
    """Add the share of one client in a round, as if the others stayed where they are."""
    own = shadow.state_dict()
    for name, step in delta(base, own).items():
        own[name].copy_(base[name] + share * step)


def _gather(batches: Iterable[Batch]) -> tuple[Tensor, Tensor]:
    """All samples of a task whose batches are (inputs, labels)."""
    found = list(batches)
    if not all(isinstance(batch, tuple | list) and len(batch) == 2 for batch in found):
        raise TrainingFailed("batches of this task are not (inputs, labels): shadows and canaries cannot be made")
    return torch.cat([batch[0] for batch in found]), torch.cat([batch[1] for batch in found])
