"""The audit at a client, which alone has the data: accuracy on it, and at the leaver membership inference. Scores only.

Members are the leaver's training samples; its held-out samples are the strangers. The loss attack scores a sample by
its negative loss; the likelihood-ratio attack compares with shadow models trained on random halves of both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from services.audit import membership
from services.audit.canaries import success, triggered
from services.audit.predictions import BATCH, Doubles, Labels, classes_of, predict
from services.audit.spec import Audit
from services.core.seeds import derive
from services.data.sources import Dataset
from services.models.weights import load_weights
from services.training.local import TrainingFailed, train
from services.training.task import Batch, Classifier, ClientTask, Labelled
from services.wire.v1.runs import ModelSpec


def audit(
    task: ClientTask,
    model: nn.Module,
    work: Audit,
    spec: ModelSpec,
    seed: int,
    device: torch.device,
    *,
    shadow_start: Path | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> dict[str, float]:
    """Figures of `model`; those that cannot be made are left out, and a verdict then fails."""
    if not isinstance(task, Labelled):
        raise TrainingFailed("this task has no `predict`, which gives logits and right classes; audits need it")
    members, member_labels = predict(task, model, task.train_batches(BATCH, 0), device)
    if work.role == "remaining":
        return _accuracy("remaining", members, member_labels)
    strangers, stranger_labels = predict(task, model, task.eval_batches(BATCH), device)
    parts = membership.split(member_labels, stranger_labels, derive(seed, "split"))
    figures = {
        **_accuracy("forgotten", members, member_labels),
        **membership.attack(_right(members, member_labels), _right(strangers, stranger_labels), parts),
    }
    if work.num_shadows:
        observed = np.concatenate([_right(members, member_labels), _right(strangers, stranger_labels)])
        ratios = _likelihood_ratios(task, observed, work, spec, seed, device, shadow_start, should_stop)
        found = membership.attack(ratios[: len(members)], ratios[len(members) :], parts)
        named = {"mia_auc": "likelihood_auc", "mia_samples": "likelihood_samples"}
        named["mia_tpr_at_low_fpr"] = "likelihood_tpr_at_low_fpr"
        figures |= {named[name]: value for name, value in found.items() if name in named}
    if work.canary is not None:
        inputs, labels = _gather(task.eval_batches(BATCH))
        x = triggered(inputs.numpy(), labels.numpy(), work.canary)
        figures |= success(classes_of(model, x, device), work.canary)
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


def _likelihood_ratios(
    task: Labelled,
    observed: Doubles,
    work: Audit,
    spec: ModelSpec,
    seed: int,
    device: torch.device,
    start: Path | None,
    should_stop: Callable[[], bool] | None,
) -> Doubles:
    """Of members, then strangers. Shadows come in pairs trained on complementary halves: every sample is in and out."""
    inputs, labels = _gather([*task.train_batches(BATCH, 0), *task.eval_batches(BATCH)])
    confidences, inside = [], []
    for index in range(work.num_shadows):
        half = np.random.default_rng(derive(seed, "shadow", index // 2)).permutation(len(labels)) % 2 == index % 2
        shadow = task.model(spec)
        if start is not None:
            load_weights(shadow, start)
        rows = torch.from_numpy(np.flatnonzero(half))
        own = Classifier(Dataset(inputs[rows].numpy(), labels[rows].numpy(), inputs[:0].numpy(), labels[:0].numpy()))
        train(own, shadow, work.shadow_training, derive(seed, "train", index), device, should_stop=should_stop)
        found, right = predict(task, shadow, [(inputs, labels)], device)
        confidences.append(membership.scaled_confidence(_right(found, right)))
        inside.append(half)
    return membership.likelihood_ratios(membership.scaled_confidence(observed), np.stack(confidences), np.stack(inside))


def _gather(batches: Iterable[Batch]) -> tuple[Tensor, Tensor]:
    """All samples of a task whose batches are (inputs, labels)."""
    found = list(batches)
    if not all(isinstance(batch, tuple | list) and len(batch) == 2 for batch in found):
        raise TrainingFailed("batches of this task are not (inputs, labels): shadows and canaries cannot be made")
    return torch.cat([batch[0] for batch in found]), torch.cat([batch[1] for batch in found])
